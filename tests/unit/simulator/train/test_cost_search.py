"""The search for one fleet's numbers and tolls: it finds what costs least, and goes on where it was."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.hashing import hash_draw, key_of, kind_hash_of, model_hash_of
from policies.learned.features import NO_TOLLS, Numbers
from policies.learned.network import Network, untrained
from simulator.pool import LocalPool
from simulator.scenario import load_scenario
from simulator.spec import CacheSpec, Fault, FleetSpec
from simulator.train import cost_search
from simulator.train.cost_search import CostSearch, Place, named, numbers_of, places_of, table_of, toll_at, tolls_of
from simulator.train.pgpe import Parts
from simulator.train.settings import TrainingSettings

SCENARIO = load_scenario("several-models")
PLACES = (Place("m", "a", "T4"), Place("m", "b", "T4"), Place("m", "c", ""), Place("n", "a", "T4"))


def identity(name_hash: int, model: str) -> float:
    return float(hash_draw(np.array([name_hash], np.uint64), np.uint64(model_hash_of(model)))[0])


def search(seed: int = 0, start: Network | None = None, **settings: Any) -> CostSearch:
    values = {"iterations": 120, "coefficients_share": 0.5, "requests": 50, "episodes": 1, "tasks": 2}
    chosen = TrainingSettings(**values | settings)
    return CostSearch(chosen, SCENARIO, SCENARIO.fleet, seed, start or untrained(0, beta=50.0))


def test_of_each_model_the_least_toll_is_none_and_a_kind_has_its_workers_mean() -> None:
    tolls = tolls_of(PLACES, np.array([1.5, 0.5, 2.5, -3.0]))
    assert list(tolls.values()) == [1.0, 0.0, 2.0, 0.0]
    table = table_of(tolls)
    assert (np.diff(table[:, 0]) > 0).all()
    assert table[-1].tolist() == NO_TOLLS[0].tolist()
    found = dict(table.tolist())
    assert found[identity(key_of("a"), "m")] == 1.0
    assert found[identity(kind_hash_of("T4"), "m")] == 0.5
    assert identity(kind_hash_of(""), "m") not in found
    assert named(table, PLACES) == {"m": {"a": 1.0, "b": 0.0, "c": 2.0}, "n": {"a": 0.0}}
    assert toll_at(table, Place("m", "stranger", "T4")) == 0.0


def test_one_model_has_no_tolls() -> None:
    fleet: FleetSpec = load_scenario("stale-reports").fleet
    assert len(fleet.models) == 1
    assert places_of(fleet) == ()
    places, workers = places_of(SCENARIO.fleet), {worker.name: worker for worker in SCENARIO.fleet.workers}
    assert len(places) < len(SCENARIO.fleet.models) * len(workers)  # not all have all
    assert all(SCENARIO.fleet.may_hold(workers[place.worker], place.model) for place in places)


def test_what_the_fleet_never_shows_keeps_its_default() -> None:
    """A twin has no errors: what they cost is not to be learned from it, or a worker that fails fast is the best."""
    bare = replace(SCENARIO.fleet, faults=(), cache=CacheSpec())
    assert numbers_of(bare) == ("delayed_share", "delayed_share_other_models", "work_behind_share")
    slow, errs = (Fault(kind, bare.workers[0].name, at_s=1.0) for kind in ("slow", "errors"))
    assert numbers_of(replace(bare, faults=(slow,))) == numbers_of(bare)
    assert set(numbers_of(replace(bare, faults=(slow, errs)))) == {*numbers_of(bare), "error_penalty_s"}
    assert set(numbers_of(replace(bare, cache=CacheSpec(8, 0.5)))) == {*numbers_of(bare), "saving_factor"}
    assert numbers_of(load_scenario("chat").fleet) == ("saving_factor", "ttft_weight")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What costs least is written down: half a delay for others, and one worker that the first model keeps off."""
    kept_off = places_of(SCENARIO.fleet)[0]

    def costs(*given: Any) -> list[Parts]:
        return list(map(cost, given[-1]))

    def cost(one: Network | None) -> Parts:
        off = 0.0
        if one is not None:
            off += abs(float(one.numbers[Numbers._fields.index("delayed_share")]) - 0.5)
            off += abs(toll_at(one.tolls, kept_off) - 0.8)
        return Parts(np.array([off]), np.zeros(1), np.zeros(1))

    monkeypatch.setattr(cost_search, "parts_played", costs)


@pytest.mark.usefixtures("written")
def test_it_finds_what_costs_least_numbers_first() -> None:
    found = search()
    for _ in range(60):
        found.iterate(LocalPool())
    share = Numbers._fields.index("delayed_share")
    assert found.network.numbers[share] == pytest.approx(0.5, abs=0.05)
    assert found.network.tolls.tolist() == NO_TOLLS.tolist()
    for _ in range(60):
        found.iterate(LocalPool())
    tolls = named(found.network.tolls, places_of(SCENARIO.fleet))
    first = places_of(SCENARIO.fleet)[0]
    assert tolls[first.model][first.worker] == pytest.approx(0.8, abs=0.2)


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("stopped", [0, 3, 10, 13])
def test_restored_it_goes_on_as_if_nothing_had_been(stopped: int) -> None:
    whole, first, second = (search(iterations=20) for _ in range(3))
    for _ in range(20):
        whole.iterate(LocalPool())
    for _ in range(stopped):
        first.iterate(LocalPool())
    second.restore(first.state())
    assert second.iteration == stopped
    for _ in range(20 - stopped):
        second.iterate(LocalPool())
    for one, other in zip(whole.network, second.network, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("written")
def test_it_begins_where_a_policy_was() -> None:
    place = places_of(SCENARIO.fleet)[1]
    start = untrained(3, beta=20.0)._replace(tolls=table_of({place: 1.25}))
    found = search(start=start, iterations=20, coefficients_share=0.0)
    assert float(found.network.beta) == pytest.approx(20.0)
    np.testing.assert_allclose(found.network.numbers, start.numbers)
    assert found.network.w1.shape == start.w1.shape
    found._ask()
    assert toll_at(found.network.tolls, place) == pytest.approx(1.25)


def test_what_it_is_told_is_the_advantage_over_expected_latency() -> None:
    """With its own numbers, and as sharp a choice, it is as good; at 1 ms a toll of hours on all but one is not."""
    settings = TrainingSettings(requests=400)
    same = untrained(0, beta=50.0)
    worse = same._replace(
        tolls=table_of({place: 1e3 if i % 12 else 0.0 for i, place in enumerate(places_of(SCENARIO.fleet))})
    )
    played = cost_search.parts_played(settings, SCENARIO, SCENARIO.fleet, [1, 2], [None, same, worse])
    found = [cost_search.advantage(parts, played[0], settings) for parts in played]
    assert found[0] == 0.0
    assert abs(found[1]) < 0.2
    assert found[2] > 1.0
