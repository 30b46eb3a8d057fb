import numpy as np
from support.views import make_view

from policies.base import Request
from policies.hashing import draws, key_of, mix, mix_array, rendezvous_cost, unit, unit_array


def test_mix_is_splitmix64() -> None:
    # The first outputs of the reference implementation for seed 1234567: each step adds the golden gamma.
    seed, gamma = 1234567, 0x9E3779B97F4A7C15
    assert [mix(seed + step * gamma) for step in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_arrays_give_what_ints_give() -> None:
    values = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert mix_array(values).tolist() == [mix(value) for value in values.tolist()]
    assert unit_array(values).tolist() == [unit(value) for value in values.tolist()]
    assert values.tolist() == [0, 1, 2**63, 2**64 - 1]


def test_key_of_is_stable() -> None:
    assert key_of("") == 0xE4A6A0577479B2B4
    assert key_of("user-42") != key_of("user-43")
    assert 0 <= key_of("\ud800 lone surrogate") < 2**64


def test_bids_for_an_array_of_keys_are_those_for_each() -> None:
    view = make_view(name_hash=[key_of(f"w{i}") for i in range(5)])
    weight = np.array([1.0, 2.0, 1.0, 4.0, 1.0])
    keys = [0, 7, 2**64 - 1]
    batch = rendezvous_cost(draws(Request("m", key=np.array(keys, np.uint64)[:, None]), view), weight)
    assert batch.tolist() == [rendezvous_cost(draws(Request("m", key=key), view), weight).tolist() for key in keys]
    assert (batch >= 0).all()
    assert np.isfinite(batch).all()
