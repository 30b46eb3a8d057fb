"""A nursery of balancers and agents that take no slow machine for an agent, a Triton or a balancer that hangs.

Nor do processes that such a balancer starts: they import this file as their main module.
"""

import functools
import importlib
import sys

from balancer.agent import triton_source
from balancer.cli.main import main
from balancer.native import state
from balancer.server import reports_front
from support import nursery
from support.waiting import PATIENCE_S

# `main` imports a command when it is used, which is after the fork.
for command in ("agent", "serve"):
    importlib.import_module(f"balancer.cli.{command}")

# A name that is gone fails here, rather than leave a stack impatient.
assert triton_source._CALL_TIMEOUT_S
assert triton_source._METRICS_TIMEOUT_S
assert state.HUNG_AFTER_S
triton_source._CALL_TIMEOUT_S = triton_source._METRICS_TIMEOUT_S = PATIENCE_S
state.HUNG_AFTER_S = 10.0  # the most that the module takes
for name in ("Collector", "RelayCollector"):
    setattr(reports_front, name, functools.partial(getattr(reports_front, name), silence_s=PATIENCE_S))


def _run(arguments: list[str]) -> None:
    sys.argv[1:] = arguments
    main()


if __name__ == "__main__":
    nursery.serve(int(sys.argv[1]), _run)
