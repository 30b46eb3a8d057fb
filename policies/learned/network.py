"""The network: the same small one for every worker, and a mean over the eligible for context. Here in NumPy.

    h = relu(x W1 + b1)                                each worker by itself; x: its features
    c = mean over the eligible of h                    the fleet
    g = relu(h W2 + c V + b2) w - z . (c M + m)        the learned term; z: its cost terms

w, M and m start at zero. The second part is a cost that is linear in the terms, with coefficients that the state of the
fleet sets: a heuristic with fixed weights is the network with m alone.

So it fits fleets of any size, and reordering the workers only reorders the answer (Zaheer et al. 2017, Deep Sets).
"""

from typing import NamedTuple

import numpy as np

from policies.base import BoolArray, FloatArray, uniform_over
from policies.learned.features import DEFAULT_NUMBERS, FEATURES, NO_TOLLS, TERMS

_ZERO = np.array(0.0)


class Network(NamedTuple):
    """Weights, with `f` features and `h` hidden units, and the cost that they correct."""

    w1: FloatArray
    """`(f, h)`."""
    b1: FloatArray
    """`(h,)`."""
    w2: FloatArray
    """`(h, h)`."""
    context: FloatArray
    """V above, `(h, h)`."""
    b2: FloatArray
    """`(h,)`."""
    out: FloatArray
    """w above, `(h,)`."""
    mix: FloatArray
    """M above, `(h, t)`."""
    bias: FloatArray
    """m above, `(t,)`."""
    beta: FloatArray
    """How sharply the score decides; `()`, above 0."""
    numbers: FloatArray = DEFAULT_NUMBERS
    """Parameters of the cost that the network corrects, in the order of `features.Numbers`; `(6,)`."""
    tolls: FloatArray = NO_TOLLS
    """`(p, 2)`: identity of a model at a worker, or at a kind of worker (`hashing.hash_draw`), ascending, and its
    toll: how many services of the model all others must be worse before it is taken. Last `NO_TOLLS`."""

    @property
    def corrects(self) -> bool:
        """Whether the term may be other than zero: else the cost decides, whatever the features are."""
        return self.b1.size > 0 or bool(self.bias.any())

    def term(self, features: FloatArray, terms: FloatArray, eligible: BoolArray) -> FloatArray:
        """The learned term in units of the best worker's cost, `(..., n)`; features `(..., n, f)`, terms `(..., n, t)`.

        Weights may carry leading axes as well, vectors then as `(..., 1, h)`: a network for each environment.
        """
        hidden = features @ self.w1
        hidden += self.b1
        np.maximum(hidden, _ZERO, out=hidden)
        mean = uniform_over(eligible)[..., None, :] @ hidden
        second = hidden @ self.w2
        second += mean @ self.context + self.b2
        np.maximum(second, _ZERO, out=second)
        term: FloatArray = np.vecdot(second, self.out) - np.vecdot(terms, mean @ self.mix + self.bias)
        return term


def shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """The shape of each weight, with `hidden` units; 0: nothing is corrected."""
    f, t, h = len(FEATURES), len(TERMS), hidden
    one = {"w1": (f, h), "b1": (h,), "w2": (h, h), "context": (h, h), "b2": (h,), "out": (h,)}
    return {**one, "mix": (h, t), "bias": (t,), "beta": ()}


def untrained(hidden: int = 8, beta: float = 20.0) -> Network:
    """All weights zero: the expected cost alone decides."""
    zeros = {name: np.zeros(shape) for name, shape in shapes(hidden).items()}
    return Network(**zeros | {"beta": np.array(beta)})
