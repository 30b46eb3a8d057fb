"""Stable hashing for sampling and rendezvous: equal in every process, Python version and machine."""

import hashlib
from typing import Any

import numpy as np

from policies.base import FleetView, FloatArray, Request, UintArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_GAMMA_U64, _M1_U64, _M2_U64 = np.uint64(_GAMMA), np.uint64(_M1), np.uint64(_M2)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _SHIFT_TO_53 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def mix(value: int) -> int:
    """SplitMix64's finaliser after one step of its sequence: 64 bits in, 64 well-mixed bits out.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def mix_array(values: Any) -> Any:
    values = values + _GAMMA_U64  # a copy: what follows works in place, as allocation is half of its cost
    values ^= values >> _SHIFT_1
    values *= _M1_U64
    values ^= values >> _SHIFT_2
    values *= _M2_U64
    values ^= values >> _SHIFT_3
    return values


def unit(value: int) -> float:
    """A number in [0, 1) from the upper 53 of 64 bits."""
    return (value >> 11) * 2.0**-53


def unit_array(values: UintArray) -> FloatArray:
    units: FloatArray = np.multiply(values >> _SHIFT_TO_53, 2.0**-53)
    return units


def key_of(text: str) -> int:
    """A stable 64-bit hash of a text (a routing key, a worker's name): the first 8 bytes of its BLAKE2b (RFC 7693)."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def draws(request: Request, fleet: FleetView) -> FloatArray:
    """The draw of each worker for the request's key, or its number where it has none: uniform in [0, 1), `(..., n)`."""
    key = request.number if request.key is None else request.key
    mixed = np.uint64(mix(key)) if isinstance(key, int) else mix_array(np.atleast_1d(key).astype(np.uint64, copy=False))
    return hash_draw(fleet.name_hash, mixed)


def hash_draw(name_hash: UintArray, mixed_key: np.uint64 | UintArray) -> FloatArray:
    """From a worker's name hash and `mix` of a key, element by element."""
    return unit_array(mix_array(name_hash ^ mixed_key))


def model_hash_of(model: str) -> int:
    """64 bits of a model's name: `hash_draw` of them and of a worker's name hash is the identity of both together."""
    return mix(key_of(model))


def kind_hash_of(device: str) -> int:
    """64 bits of a device kind, which take the place of a worker's name hash in the identity of model and kind."""
    return key_of(f"kind {device}")


def rendezvous_cost(draw: FloatArray, weight: FloatArray) -> FloatArray:
    """What a worker bids for a key, finite and >= 0, element by element: the least bid wins.

    The bid is `-ln(u) / weight`, with `u` uniform in (0, 1] from the hash of key and worker, so a worker wins in
    proportion to its weight, and one that comes or goes moves only the keys that it wins or held. Source: Thaler,
    Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM ToN 1998; the weighted form: Resch, "New
    hashing algorithms for data storage", SNIA SDC 2015.
    """
    bids: FloatArray = np.log(1.0 - draw) / -weight  # 1 - u is never 0, as u may be
    return bids
