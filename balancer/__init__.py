"""A load balancer for Triton inference fleets: Envoy asks it which worker serves each request."""

import os

# What fails is logged by us, with cause and remedy, and not for each attempt. gRPC's own lines on stderr are off unless
# asked for: a stranger writes one with each handshake that fails. gRPC reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
