"""What a decision log tells of models that generate: their prompts, and how long their steps take."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from balancer.kernel.estimators.prefixes import next_checkpoint
from balancer.kernel.settings import Settings
from balancer.server.decision_log.recorded import DecisionLog
from dev.reference.logs import simulated_log
from policies.base import Prefix, Request
from policies.expected_latency import ExpectedLatency
from policies.least_requests import LeastRequests
from simulator.arrivals import Prompts
from simulator.log.fleet import calibrate, scenario_from_log
from simulator.log.prompts import BLOCK_TOKENS, believed, prompts_of, within
from simulator.off_policy.calibrated import twin_of
from simulator.run import run
from simulator.spec import FleetSpec, GeneratingDevice, GenerationSpec, ModelSpec, Reports, ServiceTime, SimulatedWorker
from simulator.workload.draws import Lognormal, Sessions
from simulator.workload.extras import Stream
from simulator.workload.prompts import PromptText
from simulator.workload.workload import ModelTraffic, Workload


def asked(text: Sequence[int], model: str = "m", own: int = 5) -> Request:
    """Whose prompt has these blocks, and `own` tokens of its own behind them."""
    found, end = list[tuple[int, float]](), 0
    while end < len(text):
        end = min(next_checkpoint(end), len(text))
        found.append((hash((model, *text[:end])) & (2**64 - 1), float(end * BLOCK_TOKENS)))
    return Request(model, prompt_tokens=len(text) * BLOCK_TOKENS + own, prefix=tuple(found))


def blocks_of(requests: Sequence[Request], cached_tokens: Sequence[float] = ()) -> list[list[int]]:
    found = prompts_of(requests, np.full(len(requests), 7.0), np.array(cached_tokens or [0.0] * len(requests)))
    assert found is not None
    return [part.tolist() for part in np.split(found.block, np.cumsum(found.blocks)[:-1])]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Blocks that both begin with."""
    differ = [a != b for a, b in zip(one, other, strict=False)]
    return differ.index(True) if any(differ) else len(differ)


def test_without_prompts_there_are_none() -> None:
    assert prompts_of([Request("m"), Request("m")], np.zeros(2), np.zeros(2)) is None


def test_equal_beginnings_are_equal_blocks_and_what_nobody_shares_is_left_out() -> None:
    first, again, half, other = blocks_of(
        [asked(range(12)), asked(range(12)), asked([*range(8), 50, 51]), asked([70, 71, 72])]
    )
    assert len(first) == 12
    assert again == first
    assert half == first[:8]
    assert other == []


def test_of_another_model_they_are_others() -> None:
    one, other = blocks_of([asked(range(4)), asked(range(4), "other")])
    assert one == other == []


def test_a_text_that_grows_shares_all_of_what_was_before() -> None:
    """Though at its former end there is no hash of it any more."""
    lengths = (37, 39, 45, 46, 58)
    found = blocks_of([asked(range(length)) for length in lengths])
    for before, after in itertools.pairwise(found):
        assert common(before, after) == len(before)
    assert [len(blocks) for blocks in found] == [37, 39, 45, 46, 46]


def test_texts_that_part_share_what_has_a_hash() -> None:
    begins = list(range(33))
    found = blocks_of([asked([*begins, *range(100 * k, 100 * k + 40 - k)]) for k in range(1, 9)])
    for k in range(2, len(found)):
        assert common(found[0], found[k]) == 32


def test_what_workers_had_says_how_far_texts_that_part_are_the_same() -> None:
    """All begin with 38 blocks, where there is no hash; workers had none of them, then all, or less than has a hash."""
    texts = [asked([*range(38), *range(100 * k, 100 * k + 40 - k)]) for k in range(1, 9)]
    found = blocks_of(texts, [0.0, 0.0, *[38.0 * BLOCK_TOKENS] * 5, 3.0])
    for k in range(2, len(found)):
        assert common(found[0], found[k]) == 38


def test_answers_that_nobody_counted_are_as_long_as_the_mean() -> None:
    found = prompts_of([asked([1])] * 3, np.array([10.0, 0.0, 20.0]), np.zeros(3))
    assert found is not None
    assert found.output.tolist() == [10, 15, 20]
    assert found.tokens.tolist() == [37] * 3


@pytest.mark.parametrize("huge", [float("inf"), 1e300, float("nan"), -1.0])
def test_what_no_number_can_be_is_within_bounds(huge: float) -> None:
    requests = [asked([1]), Request("m", prompt_tokens=huge)]
    found = prompts_of(requests, np.array([huge, 0.0]), np.array([huge if huge < 0 else 0.0, 0.0]))
    assert found is not None
    assert min(found.tokens.min(), found.output.min()) >= 1


def test_a_worker_that_died_said_nothing_of_what_it_had() -> None:
    assert blocks_of([asked([1]), asked([1])], [float("nan"), 32.0]) == [[0], [0]]


def test_a_prompt_that_says_more_than_it_has_tokens_is_cut() -> None:
    request = dataclasses.replace(asked(range(8)), prompt_tokens=100.0)
    assert [len(blocks) for blocks in blocks_of([asked(range(8)), request])] == [3, 3]


def test_what_no_device_remembers_or_no_worker_could_say_is_cut() -> None:
    (model,) = FLEET.models
    most = min(device.memory_tokens for device in model.generation.devices.values())
    block = np.arange(10)
    prompts = Prompts(np.array([320, most + 50, 64]), np.array([10, 7, most]), np.array([8, 0, 2]), 32, block)
    found = within(prompts, FLEET.models, np.zeros(3, np.int16))
    assert (found.tokens.tolist(), found.output.tolist()) == ([320, most - 1, 64], [10, 1, most - 64])
    assert found.block.tolist() == block.tolist()
    small = dataclasses.replace(model, generation=GenerationSpec({"*": GeneratingDevice(memory_tokens=100)}))
    found = within(prompts, (small,), np.zeros(3, np.int16))
    assert (found.tokens.tolist(), found.blocks.tolist()) == ([99, 99, 64], [3, 0, 2])
    assert found.block.tolist() == [0, 1, 2, 8, 9]
    assert believed(np.array([100.0, 999_999_999.0, 7.0]), np.array([1, 1, np.nan])).tolist() == [100, 0, 7]


def prefix_of(prompts: Prompts, index: int) -> Prefix:
    begin = int(prompts.blocks[:index].sum())
    own = prompts.block[begin : begin + prompts.blocks[index]].tolist()
    return asked(own).prefix


def test_sessions_share_as_much_as_they_did() -> None:
    """Of all that any two have in common, within 5%; and never more than a few blocks that they have not."""
    arrivals = WORKLOAD.arrivals(FLEET, 800, 3)
    prompts = arrivals.prompts
    assert prompts is not None
    requests = [
        Request("m", prompt_tokens=float(prompts.tokens[i]), prefix=prefix_of(prompts, i)) for i in range(len(arrivals))
    ]
    found = blocks_of(requests)
    true = [part.tolist() for part in np.split(prompts.block, np.cumsum(prompts.blocks)[:-1])]

    def shared(texts: list[list[int]]) -> list[int]:
        """With any prompt before."""
        seen, counts = set[int](), []
        for text in texts:
            counts.append(next((i for i, block in enumerate(text) if block not in seen), len(text)))
            seen.update(text)
        return counts

    assert sum(shared(found)) == pytest.approx(sum(shared(true)), rel=0.05)


GPUS = {"fast": GeneratingDevice(60_000, 5e-8, 1e-9), "slow": GeneratingDevice(40_000, 2e-7, 4e-9)}
FLEET = FleetSpec(
    (
        ModelSpec(
            "m",
            {
                "fast": ServiceTime((1, 256, 2048), (0.006, 0.008, 0.05)),
                "slow": ServiceTime((1, 256, 2048), (0.012, 0.018, 0.14)),
            },
            generation=GenerationSpec(GPUS),
        ),
    ),
    tuple(SimulatedWorker(f"{kind}-{i}", kind) for kind in GPUS for i in range(2)),
    balancers=2,
    reports=Reports(0.05),
    settings=Settings(sticky_keys=False),
)
WORKLOAD = Workload(
    12.0,
    (
        ModelTraffic(
            "m",
            stream=Stream(Lognormal(1.0, mean=40.0)),
            prompts=PromptText(Lognormal(1.0, mean=300.0), common_tokens=400, conversation=True),
        ),
    ),
    keys=Sessions(40, 5.0),
)


def logged(folder: Path, requests: int) -> DecisionLog:
    return simulated_log(folder, FLEET, WORKLOAD.arrivals(FLEET, requests, 1), LeastRequests(), 1)


def test_what_the_log_tells_of_steps_makes_a_twin_to_train_in(tmp_path: Path) -> None:
    log = logged(tmp_path, 2000)
    calibration = calibrate(log)
    assert not calibration.notes
    (found,), (true,) = calibration.fleet.models, FLEET.models
    assert found.generation is not None
    for kind, device in GPUS.items():
        table, wanted = found.service[kind].table(2048)[0], true.service[kind].table(2048)[0]
        assert table[2048] == pytest.approx(wanted[2048], rel=0.25)
        own = found.generation.devices[kind]
        assert own.memory_tokens == device.memory_tokens
        assert own.attention_s == pytest.approx(device.attention_s, rel=0.25)
        # Of so few sequences nobody can tell what is of a token and what of those before it.
        steps_s = [times[8] + gpu.context_s * 4000 for times, gpu in ((table, own), (wanted, device))]
        assert steps_s[0] == pytest.approx(steps_s[1], rel=0.05)
    made = twin_of(log, calibration)
    assert [one.model for one in made.models] == ["m", "m, first token"]
    assert not [why for one in made.models for why in one.differs()]
    scenario = scenario_from_log(log, calibration)
    played = run(scenario.fleet, [scenario.arrivals(seed, 300) for seed in (1, 2)], ExpectedLatency(), seeds=[1, 2])
    assert (played.status == 0).all()


def test_answers_whose_tokens_nobody_counted_are_no_log_of_steps(tmp_path: Path) -> None:
    log = logged(tmp_path, 100)
    outcomes = {place: dataclasses.replace(end, output_tokens=0.0) for place, end in log.outcomes.items()}
    with pytest.raises(ValueError, match="fewer than 50 answers of m whose tokens are known: record"):
        calibrate(dataclasses.replace(log, outcomes=outcomes))
