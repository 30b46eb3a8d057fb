"""One scenario under every candidate: what clients saw, and what the simulator says they would see."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from dev.experiments.served.candidates import CANDIDATES, Candidate, serving
from dev.experiments.served.replay import Answer, lone_questions, questions, replay
from policies import BUILTIN
from policies.base import FloatArray
from simulator.arrivals import Arrivals
from simulator.run import run
from simulator.scenario import Scenario, load_scenario

SIMULATED_SEEDS = 8
"""Of ties: the requests are the same."""
_ARRIVALS_SEED = 1
_LONE, _LONE_APART_S = 80, 0.1
SPREAD = "round_robin"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Of one candidate; seconds, `(requests,)`, NaN where nothing came."""

    first_s: FloatArray
    whole_s: FloatArray
    cached: float
    """Share of the prompts' tokens."""
    errors: list[str]
    alone_s: float
    """To the first token of one that is alone, of one token: the mean."""
    late_s: float
    """The most by which the client was late."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    scenario: str
    arrivals: Arrivals
    live: dict[str, Recorded]
    """By candidate."""
    simulated: dict[str, tuple[FloatArray, FloatArray]]
    """Of our policies: seconds to the first token and of the whole answer, `(seeds, requests)` each."""


def one_balancer(name: str, requests: int) -> tuple[Scenario, Arrivals]:
    scenario = load_scenario(name)
    arrivals = scenario.arrivals(_ARRIVALS_SEED, requests)
    arrivals.balancer[:] = 0
    return replace(scenario, fleet=replace(scenario.fleet, balancers=1)), arrivals


async def record(name: str, requests: int, say: Callable[[str], None]) -> dict[str, Recorded]:
    """Ask every candidate, one after the other."""
    scenario, arrivals = one_balancer(name, requests)
    assert arrivals.prompts is not None  # else `questions` raises
    model, found = scenario.fleet.models[0].name, {}
    asked = questions(arrivals, model)
    for candidate in CANDIDATES:
        say(f"{name}: {candidate.name} ...")
        with tempfile.TemporaryDirectory(prefix="served-") as folder:
            block_tokens = arrivals.prompts.block_tokens
            async with serving(scenario, block_tokens, candidate, Path(folder)) as endpoint:
                answers = await replay(endpoint, asked)
                alone = await replay(endpoint, lone_questions(model, _LONE, _LONE_APART_S))
        found[candidate.name] = _recorded(answers, alone)
    return found


def _recorded(answers: list[Answer], alone: list[Answer]) -> Recorded:
    return Recorded(
        np.array([each.first_s for each in answers]),
        np.array([each.whole_s for each in answers]),
        sum(each.cached_tokens for each in answers) / max(1, sum(each.prompt_tokens for each in answers)),
        [each.error for each in answers if each.error],
        float(np.nanmean([each.first_s for each in alone])),
        max(each.late_s for each in answers),
    )


def simulate(name: str, requests: int, live: dict[str, Recorded]) -> Played:
    scenario, arrivals = one_balancer(name, requests)
    overhead_s = overhead(scenario, live)
    ours = [each for each in CANDIDATES if not each.peer]
    return Played(name, arrivals, live, {each.name: _simulated(scenario, arrivals, each, overhead_s) for each in ours})


def overhead(scenario: Scenario, live: dict[str, Recorded]) -> float:
    """Seconds of a request beside the step that it takes, as far as the first token: of those alone, which
    `round_robin` spreads evenly."""
    model = scenario.fleet.models[0]
    services = [model.service_on(worker.device) for worker in scenario.fleet.workers]
    steps_s = [float(service.table(1)[0][1]) for service in services if service is not None]
    return live[SPREAD].alone_s - float(np.mean(steps_s))


def _simulated(
    scenario: Scenario, arrivals: Arrivals, candidate: Candidate, overhead_s: float
) -> tuple[FloatArray, FloatArray]:
    network = scenario.fleet.network
    to_client_s = max(0.0, overhead_s - network.to_worker_s)
    fleet = replace(scenario.fleet, network=replace(network, to_client_s=to_client_s))
    policy = BUILTIN[candidate.policy](**candidate.options)
    result = run(fleet, [arrivals] * SIMULATED_SEEDS, policy, seeds=range(SIMULATED_SEEDS))
    return result.first_s, result.latency_s


def save(path: Path, requests: int, live: dict[str, Recorded]) -> None:
    content = {
        name: asdict(each) | {"first_s": each.first_s.tolist(), "whole_s": each.whole_s.tolist()}
        for name, each in live.items()
    }
    path.write_text(json.dumps({"requests": requests, "live": content}))


def read(path: Path) -> tuple[int, dict[str, Recorded]]:
    content = json.loads(path.read_text())
    return content["requests"], {
        name: Recorded(**{**each, "first_s": np.array(each["first_s"]), "whole_s": np.array(each["whole_s"])})
        for name, each in content["live"].items()
    }
