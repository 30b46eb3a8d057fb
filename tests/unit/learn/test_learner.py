"""The rounds of a learner, over a balancer that does what its file says: scripted, with a clock of its own."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from balancer.config.config import load
from balancer.config.learning import Learned, read_learned
from balancer.config.watch import ConfigState
from balancer.errors import OperatorError
from balancer.learn.learner import Learner, NothingLearnedError, Rhythm, Round, World
from balancer.server.page.document import DOCUMENT, AllTraffic, ConfigShown, PageDocument, PageWorker, Process
from policies.learned.artifact import make_artifact, write_artifact
from policies.learned.features import FEATURES
from policies.learned.network import untrained

RHYTHM = Rhythm(every_s=30.0, least_requests=500, shadow_s=10.0)
GAINS = {"mean": [0.8, 0.75, 0.85], "p99": [0.9, 0.8, 1.0]}
PROCESS = Process(0, 1, "1", 1.0, "pick", "", "", "expected_latency", "expected_latency", "", 0.0)
WORKER = PageWorker("a", "ready", [], "", 0, 0, 0, 0, 0, *[None] * 8)
TRAFFIC = AllTraffic(50.0, 0, 0.01, 0.02, 5.0, 250, 0, [], 0)
CONFIG = ConfigShown("", "", 0, [], 0.0, [], [])
SHOWN = PageDocument(
    0.0,
    PROCESS,
    TRAFFIC,
    {},
    [WORKER, dataclasses.replace(WORKER, name="b")],
    0,
    ["m"],
    0,
    {},
    [],
    CONFIG,
    {},
    {},
    {},
    [],
    {},
)


class _OverError(Exception):
    """The script has ended."""


class Scripted:
    """A balancer and a clock; `page` may be changed as time goes by."""

    def __init__(self, folder: Path, text: str = "") -> None:
        self.config = folder / "balancer.yaml"
        self.config.write_text(f"learning: {{folder: learned}}\ndecision_log: {{folder: decisions}}\n{text}")
        self.file = folder / "learned" / "learning.json"
        self.now_s, self.ends_s = 1000.0, 1100.0
        self.shown, self.answers = SHOWN, True
        self.beside: dict[str, Any] | None = None
        """What another balancer says of the rollout, where there is another."""
        self.rollout = {"to": "learned", "state": "running", "why": ""}
        self.shadow: dict[str, Any] = {"policy": "learned", "failures": 0, "last_failure": ""}
        self.record: dict[str, Any] = {
            "scoreboard": {"log": {"expected_latency": GAINS}},
            "weighs_keys": False,
            "iteration": 9,
        }
        self.trained: list[Round] = []
        self.fails: Exception | None = None
        self.takes_s = 3.0
        self.happens: list[tuple[float, Callable[[], None]]] = []
        self.stages: list[tuple[str, str | None, str | None]] = []
        self.state = ConfigState(load(self.config), str(self.config), 0.0)

    def at(self, seconds: float, happens: Callable[[], None]) -> None:
        self.happens.append((1000.0 + seconds, happens))

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for at_s, happens in [each for each in self.happens if each[0] <= self.now_s]:
            self.happens.remove((at_s, happens))
            happens()
        if self.now_s > self.ends_s:
            raise _OverError
        await asyncio.sleep(0)

    async def pages(self) -> tuple[list[bytes], list[str]]:
        if not self.answers:
            return [], ["nobody answers"]
        effective = self.state.with_learned(load(self.config))
        learned = self.state.learned
        assert learned is not None
        entry = learned.stage, learned.kept, learned.tried
        if not self.stages or self.stages[-1] != entry:
            self.stages.append(entry)
        canary = {
            "shadow": self.shadow if effective.shadow is not None else None,
            "rollout": self.rollout if effective.rollout is not None else None,
        }
        shown = [dataclasses.replace(self.shown, canary=canary)]
        if self.beside is not None:
            beside = self.beside if effective.rollout is not None else None
            shown.append(dataclasses.replace(self.shown, canary=canary | {"rollout": beside}))
        return [DOCUMENT.dump_json(each) for each in shown], []

    async def train(self, given: Round, to: Path) -> None:
        self.trained.append(given)
        ready_s = self.now_s + self.takes_s
        while self.now_s < ready_s:
            await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        ranges = np.zeros(len(FEATURES)), np.full(len(FEATURES), 1e9)
        to.write_bytes(write_artifact(make_artifact(untrained(0, 50.0), *ranges, self.record)))

    async def run(self, seconds: float = 100.0) -> Learned:
        """So long; then what is in force."""
        self.ends_s = self.now_s + seconds
        learner = Learner(self.config, RHYTHM, World(self.pages, self.train, self.sleep, lambda: self.now_s))
        with pytest.raises(_OverError):
            await learner.run()
        found = read_learned(self.file)
        assert found is not None
        return found

    def becomes(self, **changes: Any) -> Callable[[], None]:
        def change() -> None:
            self.shown = dataclasses.replace(self.shown, **changes)

        return change

    def rolls_out(self, state: str, why: str = "") -> Callable[[], None]:
        def change() -> None:
            self.rollout = {"to": "learned", "state": state, "why": why}

        return change


@pytest.fixture
def world(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path)


async def test_a_policy_that_gains_is_tried_and_kept(world: Scripted) -> None:
    world.at(40, world.rolls_out("finished"))
    found = await world.run(60)
    assert world.stages == [
        ("recording", None, None),
        ("training", None, None),
        ("shadow", None, "policy-1.npz"),
        ("rollout", None, "policy-1.npz"),
        ("resting", "policy-1.npz", None),
    ]
    assert "mean x0.800 (0.750 to 0.850)" in found.words
    assert found.kept_for is not None
    assert (found.kept_for.models, found.kept_for.workers, found.kept_for.most_per_s) == (("m",), ("a", "b"), 50.0)
    assert world.state.with_learned(load(world.config)).policy.name == "learned"
    record = [json.loads(line) for line in (world.file.parent / "record.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in record] == [stage for stage, _, _ in world.stages]


async def test_only_what_came_since_the_last_round_is_learned_from(world: Scripted) -> None:
    world.at(40, world.rolls_out("finished"))
    await world.run(100)
    first, second = world.trained
    assert first.init is None
    assert second.init == world.file.parent / "policy-1.npz"
    assert (3600 * first.hours, 3600 * second.hours) == pytest.approx((10, 31), abs=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scoreboard": {"log": {"expected_latency": GAINS | {"mean": [0.99, 0.97, 1.01]}}}}, "nothing to gain"),
        (
            {"scoreboard": {"log": {"expected_latency": GAINS | {"p99": [1.3, 1.1, 1.5]}}}},
            "slow requests would be slower",
        ),
        ({"weighs_keys": True}, "requests.sticky_keys: false"),
    ],
)
async def test_what_is_not_worth_it_is_not_tried(world: Scripted, change: dict[str, Any], words: str) -> None:
    world.record |= change
    found = await world.run(40)
    assert (found.stage, found.kept) == ("resting", None)
    assert words in found.words
    assert {stage for stage, _, _ in world.stages} == {"recording", "training", "resting"}


async def test_where_training_fails_the_words_are_its_own(world: Scripted) -> None:
    world.fails = NothingLearnedError("the fleet that is made of the log is not like it")
    found = await world.run(40)
    assert (found.stage, found.words) == ("resting", "the fleet that is made of the log is not like it")


async def test_a_rollout_that_returns_leaves_what_was_before(world: Scripted) -> None:
    world.at(40, world.rolls_out("returned", "p99 90 ms of 400 requests, of the old policy's 60 ms"))
    found = await world.run(60)
    assert (found.stage, found.kept, found.tried) == ("resting", None, None)
    assert (
        found.words
        == "policy-1.npz was taken back: the rollout returned: p99 90 ms of 400 requests, of the old policy's 60 ms"
    )


async def test_what_another_balancer_takes_back_is_not_kept(world: Scripted) -> None:
    world.beside = beside = {"to": "learned", "state": "running", "why": ""}
    world.at(20, world.rolls_out("finished"))
    world.at(45, lambda: beside.update(state="returned", why="it failed there"))
    found = await world.run(60)
    assert {kept for _, kept, _ in world.stages} == {None}
    assert (found.kept, found.words) == (None, "policy-1.npz was taken back: the rollout returned: it failed there")


async def test_a_shadow_that_fails_gets_no_request(world: Scripted) -> None:
    world.shadow = {"policy": "learned", "failures": 3, "last_failure": "ValueError: no"}
    await world.run(60)
    assert "rollout" not in {stage for stage, _, _ in world.stages}


@pytest.mark.parametrize("section", ["shadow", "rollout"])
async def test_the_configs_own_trial_goes_before(tmp_path: Path, section: str) -> None:
    world = Scripted(tmp_path, f"{section}: {{name: wlpr}}\n")
    (world.shadow if section == "shadow" else world.rollout)[{"shadow": "policy", "rollout": "to"}[section]] = "wlpr"
    found = await world.run(30 if section == "shadow" else 42)
    assert found.kept is None
    assert f"the config has a {section} of its own" in found.words


@pytest.mark.parametrize(
    ("changes", "words", "within_s"),
    [
        ({"models": ["m", "new"]}, "there is a new model: new", 2),
        ({"workers": [WORKER]}, "a worker is gone: b", 5),
        ({"workers": [WORKER, dataclasses.replace(WORKER, name="b", state="silent")]}, "a worker is gone: b", 5),
        (
            {"recent": dataclasses.replace(TRAFFIC, rate_per_s=120.0)},
            "requests a second come, 50 were the most",
            12,
        ),
    ],
)
async def test_what_is_in_force_falls_back_where_the_fleet_becomes_another(
    world: Scripted, changes: dict[str, Any], words: str, within_s: float
) -> None:
    world.at(20, world.rolls_out("finished"))
    world.at(45, world.becomes(**changes))
    before = await world.run(44)
    assert before.kept == "policy-1.npz"
    fell = await world.run(1 + within_s)
    assert (fell.stage, fell.kept) == ("recording", None)
    assert fell.words.startswith("fell back: ")
    assert fell.words.endswith(words)


async def test_a_new_worker_more_of_the_same_and_less_of_it_are_no_other_fleet(world: Scripted) -> None:
    world.at(20, world.rolls_out("finished"))
    more = [*SHOWN.workers, dataclasses.replace(WORKER, name="c")]
    world.at(45, world.becomes(workers=more, recent=dataclasses.replace(TRAFFIC, rate_per_s=90.0)))
    world.at(55, world.becomes(recent=dataclasses.replace(TRAFFIC, rate_per_s=0.0)))
    found = await world.run(65)
    assert found.kept == "policy-1.npz"


async def test_a_balancer_that_is_not_heard_is_waited_for(world: Scripted) -> None:
    world.at(20, world.rolls_out("finished"))

    def silent() -> None:
        world.answers = False

    world.at(45, silent)
    assert (await world.run(60)).kept == "policy-1.npz"


async def test_switched_off_it_takes_all_back_and_begins_anew_once_it_is_on(world: Scripted) -> None:
    world.at(20, world.rolls_out("finished"))
    on = world.config.read_text()

    def off() -> None:
        world.config.write_text(on.replace("folder: learned", "folder: learned, enabled: false"))

    await world.run(44)
    off()
    # Whatever the learner does, or whether it is there at all.
    assert world.state.with_learned(load(world.config)).policy.name == "expected_latency"
    found = await world.run(5)
    assert (found.stage, found.kept) == ("stopped", None)
    world.config.write_text(on)
    assert (await world.run(5)).stage == "recording"


async def test_what_was_kept_is_kept_by_the_next_learner_and_judged_by_its_own_fleet(world: Scripted) -> None:
    world.at(20, world.rolls_out("finished"))
    await world.run(44)
    assert (await world.run(10)).kept == "policy-1.npz"
    world.shown = dataclasses.replace(SHOWN, models=["other"])
    assert (await world.run(5)).kept is None


@pytest.mark.parametrize("field", ["learning", "decision_log"])
def test_without_a_folder_it_names_the_field(tmp_path: Path, field: str) -> None:
    world = Scripted(tmp_path)
    lines = world.config.read_text().splitlines()
    world.config.write_text("\n".join(line for line in lines if not line.startswith(field)))
    with pytest.raises(OperatorError, match=field):
        Learner(world.config, RHYTHM, World(world.pages, world.train, world.sleep, lambda: 0.0))
