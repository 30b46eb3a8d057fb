"""Stable hashing for sampling and rendezvous: equal in every process, Python version and machine."""

from __future__ import annotations

import numpy as np

from policies.base import FloatArray, UintArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def mix(value: int) -> int:
    """SplitMix64's finaliser after one step of its sequence: 64 bits in, 64 well-mixed bits out.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def mix_array(values: UintArray) -> UintArray:
    """`mix` for arrays, element by element."""
    values = values + np.uint64(_GAMMA)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_M1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_M2)
    return values ^ (values >> np.uint64(31))


def unit(value: int) -> float:
    """A number in [0, 1) from the upper 53 of 64 bits."""
    return (value >> 11) * 2.0**-53


def unit_array(values: UintArray) -> FloatArray:
    """`unit` for arrays, element by element."""
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53
