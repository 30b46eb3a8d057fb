"""The loop around an algorithm, with an algorithm and a validation that follow a script."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from policies.base import FloatArray
from policies.learned.network import Network, untrained
from simulator.pool import LocalPool, TaskPool
from simulator.train import trainer
from simulator.train.plan import ResolvedPlan
from simulator.train.scenarios import Randomised
from simulator.train.settings import TrainingSettings
from simulator.train.trainer import Trained, TrainingStep, read_checkpoint, train
from simulator.train.validation import NetworkVerdict


class Counting:
    """Its network's beta is 1 more than the iterations that are done."""

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings
        self.iteration = 0
        self.decisions = 1

    @property
    def network(self) -> Network:
        return untrained(2, beta=1.0 + self.iteration)

    def state(self) -> dict[str, FloatArray]:
        return {"iteration": np.array(float(self.iteration))}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self.iteration = int(state["iteration"])

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        self.iteration += 1
        return {"gradient": float(self.iteration)}


class Scripted:
    """Costs by iteration, and which were validated."""

    costs: Sequence[float] = ()
    validated: list[int] = []  # noqa: RUF012  # emptied by the fixture

    def __init__(self, *_: Any) -> None:
        pass

    def judge(self, network: Network, pool: TaskPool) -> NetworkVerdict:
        iteration = int(network.beta) - 1
        self.validated.append(iteration)
        return NetworkVerdict(self.costs[iteration], 0.9, 0.8, 1.0, 1.1)


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trainer, "Validation", Scripted)
    Scripted.validated.clear()
    return


def run(folder: Path, costs: Sequence[float], iterations: int, every: int = 1, **how: Any) -> Trained:
    Scripted.costs = costs
    patience = how.pop("patience", 100)
    settings = TrainingSettings(iterations=iterations, evaluate_every=every, patience=patience)
    course = ResolvedPlan(Counting(settings), Randomised(random_share=1.0), (), ())
    return train(course, folder, LocalPool(), **how)


def test_the_best_is_kept_beside_the_last(tmp_path: Path) -> None:
    kept = run(tmp_path, [0, -1, -5, -2, -5], iterations=4).checkpoint
    assert kept.best_iteration == 2  # of equals the first
    assert kept.best.beta == 3.0
    assert kept.last.beta == 5.0
    assert [each["cost"] for each in kept.curve] == [0, -1, -5, -2, -5]


def test_what_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    kept = run(tmp_path, [float("nan"), -1, float("nan")], iterations=2).checkpoint
    assert kept.best_iteration == 1


def test_evaluations_are_at_the_start_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    run(tmp_path, np.zeros(9).tolist(), iterations=7, every=3)
    assert Scripted.validated == [0, 3, 6, 7]


def test_it_stops_early_where_nothing_gets_better(tmp_path: Path) -> None:
    trained = run(tmp_path, [0, -1, -1, 0, -0.5, -9], iterations=50, patience=3)
    assert trained.why == "no better in 3 evaluations"
    assert Scripted.validated == [0, 1, 2, 3, 4]
    assert trained.checkpoint.best_iteration == 1


def test_it_stops_when_the_time_is_over_with_an_evaluation(tmp_path: Path) -> None:
    trained = run(tmp_path, [0.0] * 9, iterations=8, every=4, limit_s=0.0)
    assert trained.why == "the time is over"
    assert Scripted.validated == [0]
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.wall_s > 0.0


def test_every_iteration_leaves_a_checkpoint_that_goes_on_where_it_was(tmp_path: Path) -> None:
    costs = [0, 0, -3, 0, -2, 0, -1, 0, 0]

    class Killed(BaseException):
        pass

    def kill(step: TrainingStep) -> None:
        if step.iteration == 5:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, costs, iterations=8, every=2, on_step=kill)
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.last.beta == 6.0
    assert Scripted.validated == [0, 2, 4]
    resumed = run(tmp_path, costs, iterations=8, every=2, found=found)
    assert Scripted.validated == [0, 2, 4, 6, 8]  # none twice
    whole = run(tmp_path / "whole", costs, iterations=8, every=2)
    assert resumed.checkpoint.curve == whole.checkpoint.curve
    assert resumed.checkpoint.best_iteration == whole.checkpoint.best_iteration == 2
    assert resumed.checkpoint.wall_s >= found.wall_s


def test_a_run_that_had_ended_ends_again_without_another_step(tmp_path: Path) -> None:
    first = run(tmp_path, [0, 1, 2, 3], iterations=3)
    Scripted.validated.clear()
    again = run(tmp_path, [0, 1, 2, 3], iterations=3, found=read_checkpoint(tmp_path))
    assert Scripted.validated == []
    assert again.why == first.why
    assert again.checkpoint.curve == first.checkpoint.curve


def test_told_of_each_iteration_and_of_the_best(tmp_path: Path) -> None:
    steps: list[TrainingStep] = []
    run(tmp_path, [0, -1, 0, -2], iterations=3, every=1, on_step=steps.append)
    assert [(step.iteration, step.best) for step in steps] == [(0, True), (1, True), (2, False), (3, True)]
    assert all(dataclasses.is_dataclass(step) and step.judged is not None for step in steps)


def test_numbers_are_there_for_tensorboard(tmp_path: Path) -> None:
    run(tmp_path, [0, -1, -2], iterations=2)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tensors = {tag: events.Tensors(tag) for tag in events.Tags()["tensors"]}
    assert {"validation/cost", "validation/mean", "validation/worst_p99", "training/gradient"} <= tensors.keys()
    assert [each.step for each in tensors["validation/cost"]] == [0, 1, 2]
    assert [float(each.tensor_proto.float_val[0]) for each in tensors["validation/cost"]] == [0, -1, -2]
