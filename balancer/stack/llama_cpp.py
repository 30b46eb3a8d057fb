"""`python -m balancer.stack.llama_cpp PARAMETERS`: the server that `llama-server` is, from its Python package.

PARAMETERS is JSON, by the names of `xllamacpp.CommonParams`; of one within another as in `model.path`.
"""

import json
import signal
import sys
from operator import attrgetter

import xllamacpp


def main() -> None:
    """Serve until a signal ends the process."""
    parameters = xllamacpp.CommonParams()
    for name, value in json.loads(sys.argv[1]).items():
        *within, last = name.split(".")
        setattr(attrgetter(".".join(within))(parameters) if within else parameters, last, value)
    server = xllamacpp.Server(parameters)
    print(f"serves at {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
