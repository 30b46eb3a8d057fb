"""Scenarios: the files that are shipped, and what is said of files that do not fit."""

import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from balancer.errors import OperatorError
from balancer.files.yaml_document import ConfigError
from simulator.scenario import Scenario, load_scenario, long_scenario_names, scenario_names
from simulator.spec import CacheSpec, Noise, Reports, ServiceTime

FLEET = """
fleet:
  models: {m: {device_ms: {"*": {4: 20, 1: 10}}, batching: {max_batch_rows: 4}}}
  workers: [{count: 2}]
"""
GOOD = f"summary: a\nsplit: train\n{FLEET}workload: {{load: 0.5}}\n"
LOAD, GROUPS, MOST = "{load: 0.5}", "[{count: 2}]", "max_batch_rows: 4"
FULL = """
summary: everything at once
split: held-out
requests: 30
fleet:
  models:
    big:
      device_ms: {A100: {1: 3.4, 8: 15.2}, "*": {1: 20}}
      host_ms: {A100: {1: 0.1, 8: 0.3}}
      noise: {kind: lognormal, cv: 0.05}
      batching: {max_batch_rows: 8, queue_delay_s: 0.001, preferred_rows: [4, 8], timeout_s: 0.5}
      instances: 2
    measured:
      measured: BERT-large
  workers:
    - {count: 2, device: A100}
    - {count: 1, device: T4, speed: 2, models: [big], sharing: {concurrency: 2, interference: 0.5}}
    - {count: 2, device: A100, present: false}
  balancers: 2
  reports: {period_s: 0.2, loss: 0.1}
  faults: [{kind: slow, worker: a100-1, at_s: 1, duration_s: 2, amount: 3}, {kind: join, worker: a100-3, at_s: 1}]
  cache: {entries: 10, saving: 0.5}
  settings: {sticky_keys: false, limits: {max_pending_per_worker: 9}}
workload:
  rate_per_s: 100
  arrivals: {trace: {file: mine.csv}}
  models:
    big: {share: 2, rows: {pareto: {shape: 1.2, high: 8}}, work: {lognormal: {cv: 1}}, deadline_s: 0.1}
    measured: {rows: {fixed: 1}}
  keys: {sessions: {active: 3}}
  priorities: {1: 1, 2: 3}
  tenants: {x: 1, y: 1}
"""


def written(folder: pathlib.Path, text: str, name: str = "s.yaml") -> pathlib.Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", scenario_names() + long_scenario_names())
def test_a_shipped_scenario_loads_and_is_feasible(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert (name in scenario_names(scenario.split)) == (name not in long_scenario_names())
    arrivals = scenario.arrivals(seed=1, requests=2000)
    assert len(arrivals) == 2000
    caps = np.array([model.batching.max_batch_rows for model in scenario.fleet.models])
    assert np.all((arrivals.rows >= 1) & (arrivals.rows <= caps[arrivals.model]))
    assert np.all(arrivals.work > 0)
    assert set(arrivals.balancer.tolist()) == set(range(scenario.fleet.balancers))
    # All that is not meant as overload can be served, and all that is has a limit on what waits.
    load = scenario.workload.rate_per_s / scenario.capacity_per_s
    assert 0.5 <= load < 1 or (
        "overload" in name and math.isfinite(scenario.fleet.settings.limits.max_pending_per_worker)
    )
    # Faults fall within the run, or they would test nothing.
    end_s = scenario.requests / scenario.workload.rate_per_s
    assert end_s > 290 or name not in long_scenario_names()
    assert all(fault.at_s < 0.8 * end_s for fault in scenario.fleet.faults)


def test_training_and_held_out_scenarios_are_apart_and_unlike() -> None:
    train, held_out = scenario_names("train"), scenario_names("held-out")
    assert len(train) >= 15
    assert len(held_out) >= 8
    assert scenario_names() == sorted(train + held_out)
    assert len(set(scenario_names())) == len(train) + len(held_out)
    fleets = [[load_scenario(name).fleet for name in names] for names in (train, held_out)]
    workers = [{tuple((w.device, w.speed) for w in fleet.workers) for fleet in of_split} for of_split in fleets]
    assert not workers[0] & workers[1]


def test_a_file_says_all_there_is_to_say(tmp_path: pathlib.Path) -> None:
    written(tmp_path, "time_s\n0\n1\n5\n", "mine.csv")
    scenario = load_scenario(written(tmp_path, FULL))
    fleet = scenario.fleet
    assert (scenario.name, scenario.split, scenario.requests) == ("s", "held-out", 30)
    assert [worker.name for worker in fleet.workers] == ["a100-0", "a100-1", "t4-0", "a100-2", "a100-3"]
    assert fleet.models[0].service["A100"] == ServiceTime((1, 8), (0.0034, 0.0152), (0.0001, 0.0003))
    assert fleet.models[0].noise == Noise("lognormal", 0.05)
    assert fleet.models[0].batching.preferred_rows == (4, 8)
    assert set(fleet.models[1].service) == {"A100", "T4"}
    assert fleet.workers[2].sharing.concurrency == 2
    assert fleet.reports == Reports(0.2, loss=0.1)
    assert fleet.faults[0].duration_s == 2
    assert fleet.faults[1].duration_s == math.inf
    assert fleet.cache == CacheSpec(10, 0.5)
    assert not fleet.settings.sticky_keys
    assert fleet.settings.limits.max_pending_per_worker == 9
    arrivals = scenario.arrivals(0)
    assert len(arrivals) == 30
    assert set(arrivals.priority.tolist()) == {1, 2}
    assert set(arrivals.deadline_s.tolist()) == {0.1, math.inf}
    assert arrivals.key.min() > 0


def test_points_of_a_table_are_sorted_by_rows(tmp_path: pathlib.Path) -> None:
    assert load_scenario(written(tmp_path, GOOD)).fleet.models[0].service["*"] == ServiceTime((1, 4), (0.01, 0.02))


def test_load_is_a_share_of_capacity(tmp_path: pathlib.Path) -> None:
    # Two workers that take 20 ms for four rows.
    scenario = load_scenario(written(tmp_path, GOOD))
    assert scenario.capacity_per_s == pytest.approx(400)
    assert scenario.workload.rate_per_s == pytest.approx(200)
    assert scenario.with_load(0.9).workload.rate_per_s == pytest.approx(360)
    fast, slow = scenario.arrivals(1, 100, load=1.0), scenario.arrivals(1, 100)
    assert fast.time_s == pytest.approx(slow.time_s / 2)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda scenario: scenario.with_load(0), "load is 0: give a share of the fleet's capacity"),
        (lambda scenario: scenario.arrivals(0, 0), "requests is 0: ask for at least 1"),
    ],
)
def test_a_number_out_of_range_is_named(tmp_path: pathlib.Path, call, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call(load_scenario(written(tmp_path, GOOD)))


def test_a_closed_loop_has_clients_and_no_load(tmp_path: pathlib.Path) -> None:
    scenario = load_scenario(written(tmp_path, GOOD.replace("load: 0.5", "clients: 4")))
    assert scenario.arrivals(0, 10).clients == 4
    with pytest.raises(ValueError, match="closed loop, which has no load"):
        scenario.with_load(0.5)


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(OperatorError, match=r"'homogenous-steady' .*mean \"homogeneous-steady\""):
        load_scenario("homogenous-steady")
    with pytest.raises(OperatorError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_scenario("nowhere.yaml")


IN_WORKLOAD = [
    ("rate_per_s: 3", "must have exactly one of load, rate_per_s, clients"),
    ("models: {n: {}}", 'workload.models.n: "n" is not allowed: no such model in the'),
    (
        "arrivals: {bursts: {factor: 0.5}}",
        's.yaml:7: workload.arrivals.bursts: {"factor": 0.5} is not allowed: burst factor is 0.5: give',
    ),
    (
        "arrivals: {poisson: {}, uniform: {}}",
        "must have exactly one of poisson, uniform, bursts, diurnal, flash_crowd, trace",
    ),
    ("arrivals: {trace: {file: no.csv}}", "s.yaml:7: workload.arrivals.trace: trace 'no.csv' is neither in"),
    ("arrivals: {trace: {file: azure_llm_2023_code.csv.gz, columns: {rows_column: x}}}", "workload.arrivals.trace: "),
    ("models: {m: {rows: {fixed: 1000}}}", "s.yaml:7: workload: rows of m are 1000: give at most"),
    ("keys: {zipf: {count: 0}}", "keys.zipf.count: 0 is not allowed: must be"),
    ("priorities: {1: 0}", 'workload.priorities: {"1": 0.0} is not allowed: must have'),
    ("balancers: [1, 2]", "workload.balancers: [1.0, 2.0] is not allowed: must be as many as there are balancers, 1"),
    ("balancers: [0]", "balancers: [0.0] is not allowed: must have a weight above 0"),
]
IN_FLEET = [
    ("reports: {loss: 2}", "fleet.reports.loss: 2.0 is not allowed: must be at least 0 and at"),
    ("reports: {period_s: 0}", "reports.period_s: 0.0 is not allowed: must be at least 0.001."),
    (
        "settings: {limits: {max_pending_per_worker: 0}}",
        "settings.limits.max_pending_per_worker: 0.0 is not allowed: must be at least",
    ),
    (
        "faults: [{kind: crash, worker: worker-1, at_s: 1}]",
        'faults[0].worker: "worker-1" is not allowed: no such worker; did you mean "worker-0"?',
    ),
    ("faults: [{kind: join, worker: worker-0, at_s: 1}]", "is there from the start: give its group `present: false`"),
    (
        "faults: [{kind: errors, worker: worker-0, at_s: 1, amount: 2}]",
        "faults[0].amount: 2.0 is not allowed: must be a share of requests, at most 1",
    ),
    ("settings: {models: {n: {}}}", 'settings.models.n: "n" is not allowed: no such model'),
]
ACROSS = [
    ("{c: {a: 1}}", 'network.across_s.c: "c" is not allowed: no balancer is there; known here: b'),
    ("{b: {b: 1}}", 'network.across_s.b.b: "b" is not allowed: no worker is there; known here: a'),
    ("{b: {a: -1}}", "network.across_s.b.a: -1.0 is not allowed: must be at least 0"),
]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("summary: a\n", "", "s.yaml: summary: is missing and has no default; add it. One line"),
        ("split: train", "split: test", "s.yaml:2: split: \"test\" is not allowed: must be 'train' or 'held-out'"),
        ("split: train", "split: train\nseed: 1", "s.yaml:3: seed: unknown field (its value is 1)"),
        (LOAD, "{load: 0}", "workload.load: 0 is not allowed: must be greater than 0. Mean rate as a share"),
        (LOAD, "{}", "workload: {} is not allowed: must have exactly one of load, rate_per_s, clients."),
        (GROUPS, "[{count: 0}]", "fleet.workers[0].count: 0 is not allowed: must be greater than or equal to 1"),
        (GROUPS, "[{models: [n]}]", 'fleet.workers[0].models[0]: "n" is not allowed: no such model; known here: m'),
        (GROUPS, "[{present: false}]", "workload: model 'm' gets requests, but no present worker has it"),
        ('"*"', "A100", "fleet.workers[0].device: \"*\" is not allowed: model 'm' has no device_ms for it"),
        ("{4: 20, 1: 10}", "{}", "fleet.models.m.device_ms.*: {} is not allowed: must have a point, such as {1: 3.4}"),
        ("{4: 20, 1: 10}", "{0: 1}", "fleet.models.m.device_ms.*.0: "),
        ("batching: {max", "host_ms: {'*': {1: 1}}, batching: {max", 'host_ms.*: {"1": 1.0} is not allowed: must have'),
        ("batching: {max", "measured: BERT-large, batching: {max", "must have exactly one of measured, device_ms"),
        (MOST, "max_batch_rows: 0", "m.batching.max_batch_rows: 0 is not allowed: must be at least 1."),
        (MOST, "priority_levels: 9", "batching.priority_levels: 9 is not allowed: must be at least 1 and"),
        (MOST, "default_priority: 2", "batching.default_priority: 2 is not allowed: must be at most prio"),
        (MOST, "max_rows: 4", "s.yaml:5: fleet.models.m.batching.max_rows: "),
        (
            GROUPS,
            "[{zone: a}]\n  zones: [a, b]",
            'fleet.zones: ["a", "b"] is not allowed: must be as many as there are balancers, 1, or none',
        ),
        (GROUPS, f"[{{zone: {'z' * 64}}}]", "fleet.workers[0].zone: "),
        *((LOAD, f"{{load: 0.5, {more}}}", message) for more, message in IN_WORKLOAD),
        *((GROUPS, f"[{{}}]\n  {more}", message) for more, message in IN_FLEET),
        *(
            (GROUPS, f"[{{zone: a}}]\n  zones: [b]\n  network: {{across_s: {more}}}", message)
            for more, message in ACROSS
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(tmp_path: pathlib.Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        load_scenario(written(tmp_path, GOOD.replace(old, new)))
    assert message in str(caught.value)


def test_a_model_that_was_not_measured_is_named(tmp_path: pathlib.Path) -> None:
    text = GOOD.replace('device_ms: {"*": {4: 20, 1: 10}}', "measured: nonsense")
    with pytest.raises(ConfigError, match=r"s\.yaml:4: fleet: .*nonsense"):
        load_scenario(written(tmp_path, text))


def test_importing_needs_none_of_the_heavy_libraries() -> None:
    heavy = ("scipy", "matplotlib", "numba", "grpc", "torch", "pandas")
    code = f"import sys; import simulator.scenario; print([name for name in {heavy} if name in sys.modules])"
    root = pathlib.Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_scenario_is_immutable(tmp_path: pathlib.Path) -> None:
    scenario = load_scenario(written(tmp_path, GOOD))
    assert isinstance(scenario, Scenario)
    with pytest.raises(AttributeError):
        scenario.requests = 3  # type: ignore[misc]
