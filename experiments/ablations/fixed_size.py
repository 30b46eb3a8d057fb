"""A network for a fixed number of workers, in their order: what the shared one is compared to in the ablations.

    h = relu(x W1 + b1)      x: features and log1p of the cost terms of all the workers, one after the other
    learned term = h W2      one number for each worker

It can tell workers apart, and has to learn the same thing for each. Missing and ineligible workers are zeros; those
beyond the fixed number have a learned term of zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.base import BoolArray, FloatArray
from policies.learned.features import FEATURES, TERMS


class FixedNetwork(NamedTuple):
    """Weights; used in place of a `policies.learned.network.Network`."""

    w1: FloatArray
    b1: FloatArray
    w2: FloatArray
    beta: FloatArray

    def term(self, features: FloatArray, terms: FloatArray, eligible: BoolArray) -> FloatArray:
        """The learned term, `(..., n)`; as `Network.term`."""
        size, workers = self.w2.shape[-1], features.shape[-2]
        known = np.concatenate([features, np.log1p(terms)], axis=-1) * eligible[..., None]
        given = np.zeros((*known.shape[:-2], size, known.shape[-1]))
        given[..., : min(size, workers), :] = known[..., :size, :]
        flat = given.reshape(*given.shape[:-2], 1, -1)
        found = (np.maximum(flat @ self.w1 + self.b1, 0.0) @ self.w2)[..., 0, :]
        term = np.zeros(eligible.shape)
        term[..., : min(size, workers)] = found[..., :workers]
        return term


def fixed_shapes(hidden: int, workers: int) -> dict[str, tuple[int, ...]]:
    """Of each field."""
    given = workers * (len(FEATURES) + len(TERMS))
    return {"w1": (given, hidden), "b1": (hidden,), "w2": (hidden, workers), "beta": ()}


def fixed_initial(generator: np.random.Generator, hidden: int, workers: int, beta: float) -> FloatArray:
    """All weights in one vector: a random hidden layer (He et al. 2015), and zero where the term comes out."""
    made = {name: np.zeros(shape) for name, shape in fixed_shapes(hidden, workers).items()}
    made["w1"] = generator.normal(size=made["w1"].shape) / np.sqrt(len(made["w1"]))
    made["beta"] = np.array(np.log(beta))
    return np.concatenate([np.ravel(part) for part in made.values()])


def fixed_from_flat(vector: FloatArray, hidden: int, workers: int) -> FixedNetwork:
    """The network of a vector; of vectors `(e, d)` one for each of `e` environments."""
    found: dict[str, FloatArray] = {}
    start = 0
    for name, shape in fixed_shapes(hidden, workers).items():
        size = int(np.prod(shape))
        part = vector[..., start : start + size].reshape((*vector.shape[:-1], *shape))
        found[name] = part[:, None] if vector.ndim > 1 and name in {"b1", "beta"} else part
        start += size
    return FixedNetwork(**{**found, "beta": np.exp(found["beta"])})
