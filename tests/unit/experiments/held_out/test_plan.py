from dataclasses import replace

import numpy as np
import pytest
from unit.experiments.held_out.synthetic import make_scenario, make_watch, metrics

from experiments.held_out.plan import BASELINE, BEFORE, LOADS, TOLD, WEIGHTED, Plan, judge, other_fleets, with_weights
from experiments.held_out.runs import Run
from policies import BUILTIN
from simulator.scenario import load_scenario, scenario_names
from simulator.spec import WorkerSpec

HEURISTICS = {name: BUILTIN[name]() for name in (BASELINE, WEIGHTED, "prequal")}


def plan(**fields):
    known = {"scenarios": (make_scenario(),), "fleets": (), "heuristics": HEURISTICS, "trained": {}, "seeds": (0, 1)}
    return Plan(**known | fields)


def test_every_policy_meets_the_same_seeds_and_a_trained_one_with_and_without_guard():
    tasks = plan(trained={"learned": BUILTIN["prequal"]()}).tasks()
    assert sorted((task.label, task.way) for task in tasks) == sorted(
        [
            *((name, "plain") for name in HEURISTICS),
            (TOLD, "plain"),
            (BEFORE, "plain"),
            ("learned", "plain"),
            ("learned", "guarded"),
            (BASELINE, "clairvoyant"),
        ]
    )
    assert {task.seeds for task in tasks} == {(0, 1)}


class FakeStore:
    """Has a run of every task, whose latency tells which way it was run; but for those of the labels missing."""

    def __init__(self, *missing):
        self.missing = missing

    def find(self, task):
        if task.label in self.missing:
            return None
        latency_s = {"plain": 1.0, "guarded": 2.0, "clairvoyant": 3.0}[task.way]
        watch = make_watch(len(task.seeds)) if task.way == "guarded" else None
        return Run(metrics([latency_s] * len(task.seeds)), np.full(len(task.seeds), 10.0), watch)


def test_a_trained_policy_is_shown_as_served_and_bare():
    judged_plan = plan(trained={"learned": BUILTIN["prequal"]()})
    judged = judge(judged_plan, judged_plan.scenarios[0], FakeStore())
    shown = {name: float(each.latency.mean_s[0]) for name, each in judged.board.policies.items()}
    assert shown == dict.fromkeys([*HEURISTICS, TOLD, BEFORE], 1.0) | {"learned": 2.0, "learned, no guard": 1.0}
    assert float(judged.board.references["clairvoyant"].latency.mean_s[0]) == 3.0
    assert list(judged.watches) == ["learned"]


def test_what_is_not_finished_is_not_judged():
    judged_plan = plan()
    assert judge(judged_plan, judged_plan.scenarios[0], FakeStore("prequal")) is None


def test_other_fleets_are_run_with_those_of_the_bar_and_fewer_seeds_where_they_are_large():
    fleets = (make_scenario("small"), make_scenario("large", speeds=(1.0,) * 256))
    tasks = plan(scenarios=(), fleets=fleets, seeds=tuple(range(20))).tasks()
    assert {task.label for task in tasks} == {BASELINE, WEIGHTED}
    seeds = {name: [s for t in tasks if (t.scenario.name, t.label) == (name, BASELINE) for s in t.seeds]
             for name in ("small", "large")}  # fmt: skip
    assert seeds == {"small": list(range(20)), "large": list(range(6))}


def test_seeds_of_a_large_fleet_are_shared_out():
    tasks = [task for task in plan(scenarios=(make_scenario(speeds=(1.0,) * 256),), seeds=tuple(range(12))).tasks()
             if task.label == "prequal"]  # fmt: skip
    assert [seed for task in tasks for seed in task.seeds] == list(range(12))
    assert len(tasks) > 1


def test_other_fleets_have_the_sizes_and_loads_that_were_asked_for():
    fleets = other_fleets()
    assert {len(each.fleet.workers) for each in fleets} == {2, 32, 64, 256}
    assert len({each.name for each in fleets}) == len(fleets)
    for each in fleets:
        assert each.split == "held-out"
        assert min(abs(each.workload.rate_per_s / each.capacity_per_s - load) for load in LOADS) < 1e-6


def tables(scenarios):
    return {
        (service.rows, service.device_s)
        for scenario in scenarios
        for model in scenario.fleet.models
        for service in model.service.values()
    }


def test_no_train_scenario_has_the_models_of_the_other_fleets():
    assert not tables(other_fleets()) & tables(map(load_scenario, scenario_names("train")))


def test_weights_are_capacities():
    scenario = make_scenario(speeds=(1.0, 3.0))
    assert [worker.weight for worker in with_weights(scenario).fleet.workers] == pytest.approx([0.5, 1.5])


def test_weights_of_workers_that_hold_some_models_or_come_late():
    scenario = load_scenario("several-models")
    some = replace(scenario.fleet, workers=(*scenario.fleet.workers, WorkerSpec("late", "T4", present=False)))
    weighted = with_weights(replace(scenario, fleet=some)).fleet
    by_name = {worker.name: worker.weight for worker in weighted.workers}
    assert by_name["a100-0"] == by_name["a100-1"]
    assert all(weight > 0 for weight in by_name.values())
    # As measured, an A100 does a T4's work several times as fast.
    assert by_name["a100-0"] > 2 * by_name["late"]
