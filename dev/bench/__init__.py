"""Speed and memory, measured on the real parts: `make bench`, or `python -m dev.bench --help`."""

import os

# gRPC reports every process that is started beside it, which would tear the tables apart. It reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
