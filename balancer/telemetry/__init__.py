"""Both ends of the report stream: the agent beside each Triton, and the collector in the balancer."""

import os

# What fails is logged by us, with cause and remedy. gRPC's own lines on stderr, one an attempt, are off unless asked
# for; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
