"""The learned policy in loops is the one in NumPy, in CPython and compiled; each ratio is what is said of it."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.views import FakeView, make_view

from policies.base import FloatArray, Request
from policies.learned import Learned
from policies.learned.artifact import make_artifact
from policies.learned.features import (
    DEFAULT_NUMBERS,
    FEATURES,
    NO_TOLLS,
    TERMS,
    Feature,
    FeatureInputs,
    inputs,
    ratio_of,
)
from policies.learned.loops import READS, fill_learned, log1p, scratch_size, weights_of
from policies.learned.network import Network, shapes, untrained
from simulator.engine.compiled import compiled, from_source

EXTREME = np.array([0.0, 1e-12, 1e12, np.inf, np.nan])
_compiled_fill = from_source(fill_learned)


@compiled
def fill_compiled(columns: Any, eligible: Any, of_request: Any, weights: Any, scratch: Any, out: Any) -> int:
    return _compiled_fill(columns, eligible, of_request, weights, scratch, out)


Fill = Callable[..., int]
in_both_ways = pytest.mark.parametrize(("fill", "most"), [(fill_learned, 12), (fill_compiled, 300)])


@st.composite
def views(draw: st.DrawFn, most: int) -> FakeView:
    """Fleets of up to `most` workers, all or some or none eligible, some with values that no estimator should give."""
    n = draw(st.one_of(st.integers(0, 9), st.integers(0, most), st.just(most)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    extreme = draw(st.sampled_from([0.0, 0.0, 0.1, 0.7]))

    def column(mean: float) -> FloatArray:
        usual = generator.exponential(mean, n) * generator.integers(0, 2, n)
        return np.where(generator.random(n) < extreme, generator.choice(EXTREME, n), usual)

    return make_view(
        n,
        eligible=generator.random(n) < draw(st.sampled_from([0.0, 0.3, 1.0])),
        **{name: column(3.0) for name in ("pending", "in_flight", "reported_pending", "pending_other_models")},
        **{name: column(0.05) for name in READS if name.endswith("_s")},
        **{name: generator.random(n) * generator.integers(0, 2, n) for name in ("error_rate", "cached")},
        matched_tokens=column(300.0),
        identity=generator.permutation(2 * n)[:n] / (2 * n + 1),
        kind_identity=generator.choice([0.31, 0.32, 0.33], n),
    )


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Random ones of none to 9 hidden units."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    drawn = {name: generator.normal(0.0, 0.3, shape) for name, shape in shapes(draw(st.integers(0, 9))).items()}
    return Network(**drawn | {"beta": np.array(draw(st.sampled_from([0.5, 7.0, 40.0])))})


@st.composite
def fitted(draw: st.DrawFn, network: Network, view: FakeView) -> Network:
    """With random numbers, and tolls for some of the workers and their kinds."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    known = np.unique(np.concatenate([view.identity[generator.random(len(view.identity)) < 0.5], [0.32, 0.9]]))
    tolls = np.vstack([np.stack([known, generator.exponential(1.0, len(known))], axis=1), NO_TOLLS])
    numbers = DEFAULT_NUMBERS * generator.choice([0.0, 0.5, 1.0], len(DEFAULT_NUMBERS))
    return network._replace(numbers=numbers, tolls=tolls)


def policy_of(network: Network) -> Learned:
    return Learned(artifact=make_artifact(network, np.zeros(len(FEATURES)), np.ones(len(FEATURES)), {}))


def largest_part(network: Network, request: Request, view: FakeView) -> float:
    """No number that is added up to a score is larger, but for relative costs beyond those that are ever picked."""
    given_ = inputs(request, view, network.numbers, network.tolls)
    sizes = network._replace(**{name: np.abs(getattr(network, name)) for name in network._fields})
    term = sizes._replace(mix=-sizes.mix, bias=-sizes.bias).term(given_.features, given_.terms, view.eligible)
    return float(np.max(term + np.minimum(given_.relative_cost, 1e3), where=view.eligible, initial=0.0))


@in_both_ways
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), network=networks(), rows=st.integers(1, 5000))
def test_loops_are_the_policy(fill: Fill, most: int, data: st.DataObject, network: Network, rows: int) -> None:
    view = data.draw(views(most))
    network, prompt_tokens = data.draw(fitted(network, view)), data.draw(st.sampled_from([0.0, 0.0, 1.0, 700.0]))
    deadline_s = data.draw(st.sampled_from([0.0, 0.3, np.inf]))
    request = Request("m", rows=rows, deadline_s=deadline_s, prompt_tokens=prompt_tokens)
    weights, n = weights_of(network), len(view.eligible)
    columns = np.array([getattr(view, name) for name in READS]).reshape(len(READS), n)
    before, out = columns.copy(), np.full(n, 7.0)
    with np.errstate(all="ignore"):
        who = fill(
            *(columns, view.eligible, (float(rows), deadline_s, prompt_tokens), weights),
            *(np.full(scratch_size(n, weights), np.nan), out),
        )
    np.testing.assert_array_equal(columns, before)
    assert who == -1
    # What rounding moves the score by, beta times that moves the probability by, whatever the order of the sums.
    rounding = np.finfo(float).eps * float(network.beta) * largest_part(network, request, view)
    expected = policy_of(network).probabilities(request, view)
    np.testing.assert_allclose(out, expected, rtol=max(1e-12, rounding), atol=1e-290)


@in_both_ways
def test_it_writes_to_no_more_scratch_than_it_says(fill: Fill, most: int) -> None:
    weights = weights_of(untrained())
    for n in (1, 2, most):
        scratch = np.full(scratch_size(n, weights) + 5, 7.0)
        fill(np.ones((len(READS), n)), np.ones(n, bool), (1.0, 1.0, 0.0), weights, scratch, np.zeros(n))
        assert (scratch[-5:] == 7.0).all()
        assert scratch[-6] != 7.0


MEANS = {
    **{"cost": "cost_s", "best": "best_s", "completion_s": "completion_s"},
    **{"saved": "saved_s"},
    **{"eligible workers": "workers", "least service_s": "least_service_s", "mean pending": "mean_pending"},
    **{name: name for name in FeatureInputs._fields},
}
"""What a description calls the numbers that a ratio is made of."""
WORDS = re.compile("|".join(rf"\b{word}\b" for word in sorted(MEANS, key=len, reverse=True)))


@pytest.mark.parametrize("one", [*FEATURES, *TERMS], ids=lambda one: one.name)
def test_a_ratio_is_what_is_said_of_it(one: Feature) -> None:
    seen = FeatureInputs(*map(np.array, np.sqrt(np.arange(2.0, len(FeatureInputs._fields)))))
    numbers = {**seen._asdict(), "completion_s": seen.marginal_s + seen.backlog_s}
    formula = WORDS.sub(lambda found: MEANS[found.group()], one.ratio.described())
    assert ratio_of(seen, one.ratio) == pytest.approx(eval(formula, numbers), rel=1e-12)


@given(x=st.one_of(st.floats(0.0, 1000.0), st.floats(-300.0, 3.0).map(lambda power: 10.0**power)))
def test_logarithm(x: float) -> None:
    assert log1p(x) == pytest.approx(float(np.log1p(x)), rel=4e-16, abs=0.0)
