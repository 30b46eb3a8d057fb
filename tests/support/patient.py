"""`python -m support.patient` is `balancer`, but takes no slow machine for an agent, a Triton or a balancer that hangs.

Also of the processes that it starts: they import this file as their main module.
"""

import functools
import sys

from support.waiting import PATIENCE_S

# A name that is gone fails here, rather than leave a stack impatient.
if "agent" in sys.argv:
    from balancer.agent import triton_source

    assert triton_source._CALL_TIMEOUT_S
    assert triton_source._METRICS_TIMEOUT_S
    triton_source._CALL_TIMEOUT_S = triton_source._METRICS_TIMEOUT_S = PATIENCE_S
else:
    from balancer.native import state
    from balancer.server import app

    assert state.HUNG_AFTER_S
    state.HUNG_AFTER_S = 10.0  # the most that the module takes
    app.Collector = functools.partial(app.Collector, silence_s=PATIENCE_S)  # type: ignore[misc]  # as it is called

if __name__ == "__main__":
    from balancer.cli.main import main

    main()
