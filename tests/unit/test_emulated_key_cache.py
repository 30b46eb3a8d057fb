"""The cache of keys that an emulated GPU has: the simulator's law."""

from pathlib import Path

import numpy as np
import pytest
from simulation.builders import arrivals_of, fleet_of, model_of
from support.by_path import load

from policies.hashing import key_of
from policies.round_robin import RoundRobin
from simulator.run import run
from simulator.spec import CacheSpec

key_cache = load("triton/emulation/key_cache.py")


def test_it_saves_what_the_simulator_saves_request_by_request(tmp_path: Path) -> None:
    keys = [f"key-{i}" for i in np.random.default_rng(1).integers(0, 12, 300)]
    cache = key_cache.KeyCache(tmp_path / "keys", 7, 0.75)
    # One worker, one request at a time: a latency is the time of an execution.
    fleet = fleet_of(model_of(1.0), cache=CacheSpec(7, 0.75))
    arrivals = arrivals_of(2.0 * np.arange(len(keys)), key=[key_of(key) for key in keys])
    simulated_s = run(fleet, [arrivals], RoundRobin()).latency_s[0]
    assert [cache.work(key) for key in keys] == pytest.approx(simulated_s.tolist())
    assert 0.25 in simulated_s.round(9)


def test_models_of_one_worker_share_it_and_requests_without_a_key_do_not_matter(tmp_path: Path) -> None:
    one, other = (key_cache.KeyCache(tmp_path / "keys", 100, 0.5) for _ in range(2))
    assert one.work("a") == 1.0
    assert other.work("a") == 0.5
    assert [one.work("") for _ in range(2)] == [1.0, 1.0]


def test_without_places_nothing_is_remembered_and_no_file_made(tmp_path: Path) -> None:
    cache = key_cache.KeyCache(tmp_path / "keys", 0, 0.5)
    assert [cache.work("a") for _ in range(2)] == [1.0, 1.0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ("{}", ""),
        ('{"x-routing-key": "user 7"}', "user 7"),
        ('{"X-Routing-Key": "user", "a": 1}', "user"),
        ('{"a": "x-routing-key"}', ""),
    ],
)
def test_the_key_is_among_the_parameters(parameters: str, key: str) -> None:
    assert key_cache.key_in(parameters) == key


@pytest.mark.parametrize(("places", "saving"), [(-1, 0.5), (1, -0.1), (1, 1.1)])
def test_what_is_out_of_range_is_named(tmp_path: Path, places: int, saving: float) -> None:
    with pytest.raises(ValueError, match=f"EMULATED_GPU_CACHE_KEYS={places}"):
        key_cache.KeyCache(tmp_path / "keys", places, saving)
