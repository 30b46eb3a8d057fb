"""The log of a live fleet makes a simulated one that is like it. Emulated servers: steps take a real GPU's seconds."""

from pathlib import Path

import numpy as np
import pytest
from support import fronts

from balancer.server.decision_log.reading import read_log
from balancer.stack.stack import OwnStack
from dev.emulated_llm.process import new_emulated
from dev.experiments.served.record import one_balancer
from dev.experiments.served.replay import questions, replay
from simulator.log.fleet import calibrate
from simulator.off_policy.calibrated import twin_of

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio, pytest.mark.timeout(400)]
_SECONDS_OFF = 0.25
"""Share; of a first token, of whose milliseconds some are this machine's."""


@fronts.frontend("native", "pick", "proxy")
async def test_steps_and_latencies_are_those_of_the_servers(frontend: str, tmp_path: Path) -> None:
    scenario, arrivals = one_balancer("shared-prompts", 600)
    (model,) = scenario.fleet.models
    assert arrivals.prompts is not None
    servers = new_emulated(
        {worker.name: worker.device for worker in scenario.fleet.workers},
        scenario.name,
        tmp_path,
        arrivals.prompts.block_tokens,
    )
    settings = {
        "envoy": fronts.envoy_section(frontend, tmp_path),
        "decision_log": {"folder": str(tmp_path / "decisions")},
    }
    policy = {"name": "expected_latency"}
    async with OwnStack(tmp_path, language_models=servers, policy=policy, settings=settings) as stack:
        answers = await replay(stack.url, questions(arrivals, model.name))
    assert not [answer.error for answer in answers if answer.error]
    log = read_log(tmp_path / "decisions")
    assert len(log) == len(answers)
    calibration = calibrate(log)
    found, true = calibration.fleet.models[0], model
    for kind, service in found.service.items():
        steps_s, wanted_s = (each.table(2048)[0] for each in (service, true.service_on(kind)))
        np.testing.assert_allclose(steps_s[[1, 2048]], wanted_s[[1, 2048]], rtol=_SECONDS_OFF)
    whole, first = twin_of(log, calibration).models
    assert abs(whole.p50_error.value) < 0.1
    assert abs(whole.p99_error.value) < 0.15
    assert abs(first.p50_error.value) < _SECONDS_OFF
