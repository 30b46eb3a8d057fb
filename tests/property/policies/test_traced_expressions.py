"""Whatever is said in operations that programs have is what NumPy computes, in a program."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.strangers import stranger
from support.views import make_view

from policies.base import FleetView, FloatArray, Request, uniform_over
from policies.columns import QUANTITIES
from policies.traced import traced
from policies.traced.program import answered

_PAIRS = (
    *(np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.fmax, np.fmin),
    *(np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal, np.logical_and, np.logical_or),
    *(np.logical_xor, np.remainder, np.floor_divide),
)
_ALONE = (
    *(np.negative, np.absolute, np.floor, np.ceil, np.sqrt, np.exp, np.log, np.log1p, np.tanh, np.square, np.sign),
    *(np.isnan, np.isfinite, np.isinf, np.logical_not, np.trunc, np.reciprocal, np.expm1),
)
_OVER = (np.sum, np.max, np.min, np.mean, np.any, np.all, np.count_nonzero, np.argmin, np.argmax)
_ALONG = (np.cumsum, np.sort, lambda x, axis: np.argsort(x, axis=axis, kind="stable"))

_LEAF = {
    "column": lambda name, request, fleet: getattr(fleet, name) * 1.0,
    "request": lambda name, request, fleet: getattr(request, name) * 1.0,
    "constant": lambda value, request, fleet: value,
    "workers": lambda _, request, fleet: fleet.pending.shape[-1] * 1.0,
}
LEAVES = st.one_of(
    st.sampled_from([("column", name) for name in (*QUANTITIES, "eligible")]),
    st.sampled_from([("request", name) for name in ("rows", "deadline_s", "priority", "number")]),
    st.sampled_from([("constant", value) for value in (0.0, 1.0, -2.5, 0.1, 7.0, np.inf, True)]),
    st.just(("workers", None)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(_PAIRS), inner, inner),
        st.tuples(st.sampled_from(_ALONE), inner),
        st.tuples(st.just("where"), inner, inner, inner),
        st.tuples(st.sampled_from(_OVER), inner),
        st.tuples(st.sampled_from(_ALONG), inner),
    ),
    max_leaves=8,
)


def evaluate(tree, request: Request, fleet: FleetView):  # type: ignore[no-untyped-def]  # of any shape
    """By NumPy, or by what stands in for its arrays."""
    kind, *parts = tree
    if kind in _LEAF:
        return _LEAF[kind](parts[0], request, fleet)
    values = [evaluate(part, request, fleet) * 1.0 for part in parts]
    if kind == "where":
        return np.where(*values)
    if kind in _OVER:
        return kind(values[0] + 0.0 * fleet.weight, axis=-1, keepdims=True)
    return kind(values[0] + 0.0 * fleet.weight, axis=-1) if kind in _ALONG else kind(*values)


@settings(max_examples=examples(300), deadline=None)
@given(tree=TREES, seed=st.integers(0, 2**32 - 1))
@example((np.floor_divide, ("constant", -2.5), ("constant", np.inf)), 0)
@example((np.floor_divide, ("constant", -2.5), (np.floor_divide, ("column", "weight"), ("column", "backlog_s"))), 0)
@example((np.sign, (np.divide, ("column", "in_flight"), ("column", "backlog_s"))), 0)
def test_an_expression_is_the_same_in_a_program(tree, seed: int) -> None:  # type: ignore[no-untyped-def]  # see TREES
    def policy(request: Request, fleet: FleetView) -> FloatArray:
        value = evaluate(tree, request, fleet) + 0.0 * fleet.weight
        # A number that differs in its last bits only does so here as well.
        score = np.exp(-np.minimum(np.where(np.isnan(value), 5.0, np.absolute(value)), 8.0)) * fleet.eligible
        total = score.sum(axis=-1, keepdims=True)
        return np.where(total > 0.0, score / np.where(total > 0.0, total, 1.0), uniform_over(fleet.eligible))

    found = traced(stranger(policy))
    if found.program is None:
        # Numbers that two ways of adding up put on either side of a step.
        assert "another one than that of its operations" in found.reason, found.reason
        return
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 40))
    columns = {name: draw.choice([0.0, 0.25, 1.0, 3.0, 11.0], n) for name in QUANTITIES if name != "weight"}
    view = make_view(n, eligible=draw.random(n) < 0.7, weight=1.0 + draw.integers(0, 3, n), **columns)
    request = Request("m", rows=3.0, number=int(draw.integers(2**40)), deadline_s=0.5, priority=2)
    with np.errstate(all="ignore"):
        wanted = policy(request, view)
    np.testing.assert_allclose(answered(found.program, request, view), wanted, rtol=0, atol=1e-12)
