import math
import pathlib
from dataclasses import replace

import numpy as np
import pytest

from balancer.load.arrivals import rescaled
from policies.hashing import key_of
from simulator.arrivals import Arrivals
from simulator.spec import BatchingSpec, FleetSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.workload.draws import Exponential, Lognormal, Pareto, Shares, UniformInt, UniformKeys
from simulator.workload.trace import Recorded, TraceColumns, read_recorded
from simulator.workload.workload import ModelTraffic, Workload

DATA = pathlib.Path(__file__).parents[3] / "simulator" / "data"
TOKENS = TraceColumns("ContextTokens", 512, "GeneratedTokens")


def model(name: str, max_rows: int) -> ModelSpec:
    return ModelSpec(name, {"*": ServiceTime((1,), (0.01,))}, batching=BatchingSpec(max_batch_rows=max_rows))


FLEET = FleetSpec((model("a", 4), model("b", 16)), (SimulatedWorker("w"),), balancers=3)
MIX = Workload(
    100,
    (ModelTraffic("a", 3, UniformInt(1, 8), deadline_s=0.1), ModelTraffic("b", 1, work=Lognormal(2))),
    keys=UniformKeys(7),
    priorities=Shares({1: 0.2, 2: 0.8}),
    tenants=Shares({0: 0.5, 1: 0.5}),
)
COLUMNS = ("time_s", "model", "rows", "work", "key", "deadline_s", "priority", "balancer", "tenant")


def columns(arrivals: Arrivals) -> dict[str, list[float]]:
    return {name: getattr(arrivals, name).tolist() for name in COLUMNS}


def written(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    return path


def test_every_column_is_as_the_workload_says() -> None:
    arrivals = MIX.arrivals(FLEET, 20_000, 1)
    a = arrivals.model == 0
    assert a.mean() == pytest.approx(0.75, abs=0.02)
    assert sorted(set(arrivals.rows[a])) == [1, 2, 3, 4]
    assert np.mean(arrivals.rows[a] == 4) == pytest.approx(5 / 8, abs=0.02)
    assert set(arrivals.rows[~a]) == {1}
    assert set(arrivals.work[a]) == {1.0}
    assert arrivals.work[~a].mean() == pytest.approx(1, abs=0.1)
    assert set(arrivals.deadline_s[a]) == {0.1}
    assert set(arrivals.deadline_s[~a]) == {math.inf}
    assert np.bincount(arrivals.balancer) / 20_000 == pytest.approx([1 / 3] * 3, abs=0.02)
    assert np.mean(arrivals.priority == 1) == pytest.approx(0.2, abs=0.02)
    assert np.mean(arrivals.tenant == 1) == pytest.approx(0.5, abs=0.02)
    assert len(set(arrivals.key.tolist())) == 7


def test_types_are_those_of_arrivals() -> None:
    arrivals = MIX.arrivals(FLEET, 10, 1)
    kinds = ["float64", "int16", "int32", "float64", "uint64", "float64", "int16", "int16", "int16"]
    assert [str(getattr(arrivals, name).dtype) for name in COLUMNS] == kinds
    assert {len(getattr(arrivals, name)) for name in COLUMNS} == {10}


def test_equal_seeds_give_equal_runs_and_others_others() -> None:
    assert columns(MIX.arrivals(FLEET, 200, 5)) == columns(MIX.arrivals(FLEET, 200, 5))
    first, other = columns(MIX.arrivals(FLEET, 200, 5)), columns(MIX.arrivals(FLEET, 200, 6))
    assert all(first[name] != other[name] for name in COLUMNS)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    long, short = columns(MIX.arrivals(FLEET, 500, 5)), columns(MIX.arrivals(FLEET, 100, 5))
    assert {name: values[:100] for name, values in long.items()} == short


def test_requests_fall_to_balancers_by_their_weights_and_nothing_else_changes() -> None:
    plain, weighted = MIX, replace(MIX, balancers=(3.0, 0.0, 1.0))
    one, two = plain.arrivals(FLEET, 20_000, 1), weighted.arrivals(FLEET, 20_000, 1)
    assert np.bincount(two.balancer, minlength=3) / 20_000 == pytest.approx([0.75, 0.0, 0.25], abs=0.02)
    for name in COLUMNS:
        assert np.array_equal(getattr(one, name), getattr(two, name)) == (name != "balancer")
    with pytest.raises(ValueError, match=r"balancers is \(1.0,\): give a weight for each of the fleet's 3 balancers"):
        replace(MIX, balancers=(1.0,)).arrivals(FLEET, 10, 1)


def test_another_mix_changes_neither_times_nor_balancers_nor_keys() -> None:
    other = Workload(100, (ModelTraffic("b", 1, Pareto(1.1, 16), Exponential()),), keys=UniformKeys(7))
    one, two = columns(MIX.arrivals(FLEET, 200, 5)), columns(other.arrivals(FLEET, 200, 5))
    assert [one[name] == two[name] for name in ("time_s", "balancer", "key", "model")] == [True, True, True, False]


def test_another_rate_is_the_same_run_faster() -> None:
    slow, fast = MIX.arrivals(FLEET, 200, 5), MIX.at_rate(1000).arrivals(FLEET, 200, 5)
    assert fast.time_s == pytest.approx(slow.time_s / 10)
    assert np.array_equal(fast.rows, slow.rows)


def test_in_a_closed_loop_clients_send_at_once() -> None:
    arrivals = Workload(1, (ModelTraffic("a"),), clients=8).arrivals(FLEET, 50, 0)
    assert arrivals.clients == 8
    assert not arrivals.time_s.any()


@pytest.mark.parametrize("name", ["conv", "code"])
def test_an_azure_trace_gives_times_rows_and_work(name: str) -> None:
    recorded = read_recorded(DATA / f"azure_llm_2023_{name}.csv.gz", TOKENS)
    arrivals = Workload(50, (ModelTraffic("b"),), recorded=recorded).arrivals(FLEET, len(recorded.time_s), 1)
    assert len(arrivals) == {"conv": 19_366, "code": 8_819}[name]
    assert len(arrivals) / arrivals.time_s[-1] == pytest.approx(50, rel=0.01)
    assert arrivals.rows.max() <= 16
    assert arrivals.work.mean() == pytest.approx(1)
    assert arrivals.work.min() > 0


def test_a_trace_is_repeated_from_a_place_of_the_seed_in_its_own_shape(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "t.csv", "time_s,model,size,key\n0,a,1,x\n1,b,20,\n1.5,a,9,y\n6,b,3,x\n")
    workload = Workload(10, (ModelTraffic("a", deadline_s=0.5),), recorded=read_recorded(path))
    runs = [workload.arrivals(FLEET, 9, seed) for seed in range(20)]
    starts = set()
    for run in runs:
        # Four requests in 6 s are a mean gap of 2, so a round is 8 s long: sped up to 10 a second, 0.4 s.
        gaps = np.diff(run.time_s)
        assert np.sort(gaps[:4]) == pytest.approx(np.array([0.5, 1, 2, 4.5]) / 20)
        assert gaps[4:] == pytest.approx(gaps[:4])
        assert run.model[0] == run.model[4] == run.model[8]
        named = {(0, 1): key_of("x"), (1, 16): 0, (0, 4): key_of("y"), (1, 3): key_of("x")}
        entries = list(zip(run.model.tolist(), run.rows.tolist(), strict=True))
        assert run.key.tolist() == [named[entry] for entry in entries]
        assert run.deadline_s[run.model == 0] == pytest.approx(0.5)
        starts.add(entries[0])
    assert starts == set(named)


def test_in_blocks_it_begins_again_now_and_then_and_all_requests_are_as_probable() -> None:
    gaps = np.random.default_rng(0).exponential(size=500)
    time_s = rescaled(np.cumsum(gaps), 1.0)
    recorded = Recorded(time_s, None, None, None, None, block=50)
    run_s, position = recorded.window(2.0, 100_000, np.random.default_rng(1))
    follows = np.diff(position) % 500 == 1
    assert follows.mean() == pytest.approx(1 - 1 / 50, abs=0.005)
    own = np.diff(time_s, prepend=time_s[-1] - 500)
    assert np.diff(run_s) * 2 == pytest.approx(own[position][1:])
    assert 100_000 / run_s[-1] == pytest.approx(2.0, rel=0.05)
    assert np.bincount(position, minlength=500) / 100_000 == pytest.approx(1 / 500, rel=0.5)
    again = recorded.window(2.0, 100_000, np.random.default_rng(1))
    assert (again[1] == position).all()


def test_demand_is_what_the_run_has_on_average() -> None:
    demand = MIX.demand(FLEET)
    assert [one.share for one in demand] == [0.75, 0.25]
    assert demand[0].rows == pytest.approx((1 + 2 + 3 + 4 * 5) / 8, rel=1e-3)
    assert demand[1].row_work == pytest.approx(1)
    recorded = read_recorded(DATA / "azure_llm_2023_conv.csv.gz", TOKENS)
    traced = Workload(50, (ModelTraffic("b"),), recorded=recorded)
    run = traced.arrivals(FLEET, len(recorded.time_s), 1)
    assert traced.demand(FLEET)[1].rows == pytest.approx(run.rows.mean())
    assert traced.demand(FLEET)[1].row_work == pytest.approx((run.rows * run.work).mean())


def test_demand_of_a_trace_that_names_models_is_by_model(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "t.csv", "time_s,model,size\n0,a,1\n1,b,20\n1.5,a,9\n6,b,3\n7,b,5\n")
    demand = Workload(10, (), recorded=read_recorded(path)).demand(FLEET)
    assert [(one.share, one.rows) for one in demand] == [(0.4, 2.5), (0.6, 8.0)]


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (lambda: MIX.arrivals(FLEET, 0, 1), "requests is 0: ask for at least 1"),
        (lambda: Workload(1, (ModelTraffic("c"),)).arrivals(FLEET, 1, 1), "model 'c': name one of the fleet's"),
        (lambda: TraceColumns(units_per_row=0), r"units_per_row\n.*greater than 0"),
        (
            lambda: read_recorded(DATA / "azure_llm_2023_code.csv.gz", TraceColumns("Tokens")),
            "has no column 'Tokens': name one of .*ContextTokens",
        ),
    ],
)
def test_what_does_not_fit_is_named(run, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        run()


def test_a_trace_column_with_nothing_in_it_is_refused(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "t.csv", "time_s,Tokens\n0,1\n1,0\n")
    with pytest.raises(ValueError, match="column 'Tokens' has 0: give numbers above 0"):
        read_recorded(path, TraceColumns(work_column="Tokens"))
