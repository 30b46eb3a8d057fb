"""A network's weights as one vector, which optimisers turn, and many networks side by side."""

from __future__ import annotations

import numpy as np

from policies.base import FloatArray
from policies.learned.network import Network, shapes

_MATRICES = {"w1", "w2", "context", "mix"}


def initial(generator: np.random.Generator, hidden: int, beta: float) -> Network:
    """Random hidden layers (He et al. 2015), and zero where the learned term comes out: it starts at zero."""
    made = {name: np.zeros(shape) for name, shape in shapes(hidden).items()}
    for name, fan_in in (("w1", len(made["w1"])), ("w2", 2 * hidden), ("context", 2 * hidden)):
        made[name] = generator.normal(size=made[name].shape) / np.sqrt(fan_in)
    return Network(**made | {"beta": np.array(beta)})


def flat(network: Network) -> FloatArray:
    """All weights in one vector `(d,)`; of beta its logarithm, so that it stays above 0."""
    parts = {**network._asdict(), "beta": np.log(network.beta)}
    return np.concatenate([np.ravel(parts[name]) for name in shapes(network.b1.size)])


def from_flat(vector: FloatArray, hidden: int) -> Network:
    """The network of a vector; of vectors `(e, d)` one for each of `e` environments, as `Network.term` wants it."""
    many = vector.ndim > 1
    found: dict[str, FloatArray] = {}
    start = 0
    for name, shape in shapes(hidden).items():
        size = int(np.prod(shape))
        part = vector[..., start : start + size].reshape((*vector.shape[:-1], *shape))
        found[name] = part[:, None] if many and name not in _MATRICES else part
        start += size
    found["beta"] = np.exp(found["beta"])
    return Network(**found)


def scale_by_part(hidden: int, of: dict[str, float]) -> FloatArray:
    """A number for each weight, `(d,)`: what `of` has for its part of the network, 1 by default."""
    return np.concatenate([np.full(int(np.prod(shape)), of.get(name, 1.0)) for name, shape in shapes(hidden).items()])
