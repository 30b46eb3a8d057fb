"""Sequences, streams and clients that give up: what is drawn, and what goes with what."""

import math
import pathlib
from collections import defaultdict

import numpy as np
import pytest

from balancer.files.yaml_document import ConfigError
from simulator.arrivals import Arrivals, Extras
from simulator.capacity import capacity_per_s
from simulator.scenario import load_scenario
from simulator.spec import BatchingSpec, FleetSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.workload.draws import Lognormal, Shares, UniformKeys
from simulator.workload.extras import Patience, Sequences, Stream
from simulator.workload.workload import ModelTraffic, Workload

FLEET = FleetSpec(
    tuple(ModelSpec(name, {"*": ServiceTime((1,), (0.01,))}, batching=BatchingSpec(max_batch_rows=8)) for name in "ab"),
    (SimulatedWorker("w"),),
)
ROWS = Shares({1: 1, 4: 1, 8: 1})


def drawn(requests: int = 20_000, seed: int = 1, **traffic: object) -> tuple[Arrivals, Extras]:
    """Requests to model `a` with this traffic, and as many plain ones to `b`."""
    mine = ModelTraffic("a", rows=ROWS, **traffic)  # type: ignore[arg-type] # fields of different types, by name
    workload = Workload(100, (mine, ModelTraffic("b")), keys=UniformKeys(50))
    arrivals = workload.arrivals(FLEET, requests, seed)
    assert arrivals.extras is not None
    return arrivals, arrivals.extras


def test_without_extras_there_are_none() -> None:
    assert Workload(100, (ModelTraffic("a"),)).arrivals(FLEET, 10, 1).extras is None


def test_sequences_have_a_start_and_a_key_each_and_follow_one_another() -> None:
    arrivals, extras = drawn(sequences=Sequences(active=20, share=0.5, mean_requests=4))
    members = extras.sequence >= 0
    assert not members[arrivals.model == 1].any()
    assert members[arrivals.model == 0].mean() == pytest.approx(0.5, abs=0.02)
    own: dict[int, list[int]] = defaultdict(list)
    for k in np.flatnonzero(members):
        own[int(extras.sequence[k])].append(int(k))
    assert sorted(own) == list(range(len(own)))
    assert [requests[0] for requests in own.values()] == sorted(requests[0] for requests in own.values())
    for requests in own.values():
        assert extras.starts[requests].tolist() == [True] + [False] * (len(requests) - 1)
        assert len(set(arrivals.key[requests].tolist())) == 1
    assert len({int(arrivals.key[requests[0]]) for requests in own.values()}) == len(own)
    assert np.mean([len(requests) for requests in own.values()]) == pytest.approx(4, abs=0.3)
    assert not extras.starts[~members].any()


def test_streams_take_as_long_as_they_have_responses() -> None:
    stream = Stream(Lognormal(1.0, 50.0), first=10.0)
    arrivals, extras = drawn(stream=stream)
    own = arrivals.model == 0
    assert extras.responses[own].min() >= 1
    assert extras.responses[own].mean() == pytest.approx(50.5, abs=1.5)
    assert not extras.responses[~own].any()
    assert arrivals.work[own].mean() == pytest.approx(1, abs=0.03)
    assert set(arrivals.work[~own]) == {1.0}
    work = extras.responses[own] + 9.0
    np.testing.assert_allclose(arrivals.work[own] / work, arrivals.work[own][0] / work[0])
    np.testing.assert_allclose(extras.first_share[own], 10 / work)


@pytest.mark.parametrize("follows", ["rows", "key"])
def test_responses_go_with_what_requests_show(follows: str) -> None:
    lengths = Lognormal(1.0, 50.0)
    alone, alone_extras = drawn(stream=Stream(lengths))
    arrivals, extras = drawn(stream=Stream(lengths, follows=follows, correlation=0.9))  # type: ignore[arg-type]
    own = arrivals.model == 0
    shown = arrivals.rows if follows == "rows" else arrivals.key

    def explained(responses: np.ndarray) -> float:
        """Share of the variance of the logarithm that lies between requests that show different things."""
        logs = np.log(responses[own])
        means = {value: logs[shown[own] == value].mean() for value in set(shown[own].tolist())}
        return float(np.var([means[value] for value in shown[own].tolist()]) / np.var(logs))

    assert explained(alone_extras.responses) < 0.1
    assert explained(extras.responses) > 0.5
    # Neither the requests nor how many responses there are in all have changed.
    np.testing.assert_array_equal(arrivals.rows, alone.rows)
    if follows == "rows":
        assert np.quantile(extras.responses[own], 0.5) == pytest.approx(
            np.quantile(alone_extras.responses[own], 0.5), rel=0.05
        )


def test_load_counts_what_goes_together() -> None:
    """Long streams of many rows cost more than their means say."""
    lengths = Lognormal(1.0, 50.0)
    free, bound = (
        Workload(1, (ModelTraffic("a", rows=ROWS, stream=Stream(lengths, follows=f, correlation=0.9)),))  # type: ignore[arg-type]
        for f in (None, "rows")
    )
    arrivals = bound.arrivals(FLEET, 50_000, 1)
    row_work = float(np.mean(arrivals.rows * arrivals.work))
    assert bound.demand(FLEET)[0].row_work == pytest.approx(row_work, rel=0.03)
    assert row_work > 1.2 * free.demand(FLEET)[0].row_work
    assert capacity_per_s(FLEET, bound) < capacity_per_s(FLEET, free)


@pytest.mark.parametrize("fixed", [True, False])
def test_clients_give_up(fixed: bool) -> None:
    arrivals, extras = drawn(patience=Patience(2.0, fixed))
    own = arrivals.model == 0
    assert np.all(np.isinf(extras.patience_s[~own]))
    assert extras.patience_s[own].mean() == pytest.approx(2, abs=0.06)
    assert (extras.patience_s[own].std() == 0) == fixed
    assert extras.patience_s.min() > 0


def test_a_longer_run_begins_as_a_shorter_one_and_nothing_else_changes() -> None:
    everything = {"sequences": Sequences(5), "stream": Stream(Lognormal(1.0, 9.0)), "patience": Patience(1.0)}
    (short, short_extras), (long, long_extras) = drawn(100, **everything), drawn(300, **everything)
    plain, _ = drawn(300, patience=Patience(1.0))
    for name in ("sequence", "starts", "responses", "first_share", "patience_s"):
        np.testing.assert_array_equal(getattr(short_extras, name), getattr(long_extras, name)[:100])
    np.testing.assert_array_equal(short.key, long.key[:100])
    for name in ("time_s", "model", "rows", "balancer"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(long, name))


GOOD = """
summary: a
split: train
fleet:
  models: {m: {device_ms: {"*": {1: 10}}, batching: {max_batch_rows: 4}}}
  workers: [{count: 2}]
  faults: [{kind: unload, worker: worker-0, at_s: 1, duration_s: 2, model: m}]
workload:
  load: 0.5
  models:
    m:
      rows: {uniform: {high: 4}}
      sequences: {active: 10, share: 0.5}
      stream: {responses: {lognormal: {mean: 40, cv: 1}}, first: 10, follows: rows, correlation: 0.5, at_most: 100}
      patience: {mean_s: 3, fixed: true}
"""


def test_a_file_says_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GOOD)
    scenario = load_scenario(path)
    (traffic,) = scenario.workload.traffic
    assert traffic.sequences == Sequences(10, 0.5)
    assert traffic.patience == Patience(3, True)
    assert traffic.stream == Stream(Lognormal(1.0, 40.0), 10, "rows", 0.5, 100)
    assert scenario.fleet.faults[0].model == "m"
    extras = scenario.arrivals(1, 500).extras
    assert extras is not None
    assert extras.responses.max() <= 100
    assert set(extras.patience_s.tolist()) == {3.0}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model: m}", "model: n}", "no such model"),
        ("kind: unload", "kind: slow", "is of load and unload alone"),
        ("rows: {uniform: {high: 4}}", "rows: {fixed: 2}", "needs rows that differ"),
        ("follows: rows", "follows: key", ""),
        ("sequences: {active: 10, share: 0.5}\n", "sequences: {active: 0}\n", "active"),
        ("mean_s: 3", "mean_s: 0", "mean_s"),
        ("correlation: 0.5", "correlation: 2", "correlation"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: pathlib.Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "s.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    if not said:
        assert math.isfinite(load_scenario(path).workload.rate_per_s)  # sequences have keys
        return
    with pytest.raises(ConfigError, match=said):
        load_scenario(path)
