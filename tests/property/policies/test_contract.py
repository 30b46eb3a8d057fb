"""What every registered policy promises, whatever the fleet looks like."""

import dataclasses
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.views import FakeView, make_view

from balancer.config.policy_options import catalogue
from policies.base import Policy, Request

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # no invalid arithmetic, whatever the columns


def variants(policy: type[Policy]) -> list[Policy]:
    """The policy with its defaults, and once for each other value of a choice and each bound that can be reached."""
    hints = get_type_hints(policy)
    changed: list[dict[str, object]] = [{}]
    for field in dataclasses.fields(policy):
        if field.metadata.get("from_file"):
            continue
        hint = hints[field.name]
        values: set[object] = {field.metadata[bound] for bound in ("ge", "le") if bound in field.metadata}
        if get_origin(hint) is Literal:
            values = set(get_args(hint))
        elif hint is bool:
            values = {True, False}
        elif hint is int:
            values |= {1, 3}
        changed += [{field.name: value} for value in sorted(values - {field.default}, key=str)]
    return [policy(**options) for options in changed]  # type: ignore[arg-type]  # options by name, of many types


POLICIES = [variant for policy in catalogue().policies.values() for variant in variants(policy)]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.name}:{policy!r}")

ORDINARY = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0.0, 1000.0))
EXTREME = st.sampled_from([0.0, 1e-12, 1e12, np.inf, np.nan])
COLUMNS = (
    "in_flight",
    "reported_pending",
    "pending",
    "backlog_s",
    "completion_s",
    "service_s",
    "latency_s",
    "tokens",
    "report_age_s",
    *("matched_tokens", "waiting_tokens", "cached_tokens", "held_tokens", "memory_tokens"),
)


@st.composite
def fleets(draw: st.DrawFn, leading: tuple[int, ...] = (), extreme: bool = False) -> FakeView:
    """Fleets of 0 to 9 workers, with ties, and on demand with values that no estimator should give."""
    n = draw(st.integers(0, 9))
    size = int(np.prod(leading, dtype=int)) * n

    def column(values: st.SearchStrategy[object], dtype: type = np.float64) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype).reshape(*leading, n)

    values = st.one_of(ORDINARY, EXTREME) if extreme else ORDINARY
    return make_view(
        n,
        leading=leading,
        eligible=column(st.booleans(), np.bool_),
        weight=column(st.sampled_from([0.5, 1.0, 4.0])),
        name_hash=column(st.integers(0, 2**64 - 1), np.uint64),
        error_rate=column(st.floats(0.0, 1.0)),
        **{name: column(values) for name in COLUMNS},
    )


REQUESTS = st.builds(
    Request,
    model=st.just("m"),
    number=st.integers(0, 2**64 - 1),
    key=st.none() | st.integers(0, 2**64 - 1),
    rows=st.integers(1, 64),
    prompt_tokens=st.sampled_from([0.0, 0.0, 1.0, 3000.0]),
    max_tokens=st.sampled_from([0.0, 0.0, 1.0, 3000.0]),
)


def check(policy: Policy, result: np.ndarray, view: FakeView) -> None:
    assert result.shape == view.eligible.shape
    assert result.dtype == np.float64
    assert (result >= 0).all()
    assert (result[~view.eligible] == 0).all()
    total = result.sum(axis=-1)
    has_eligible = view.eligible.any(axis=-1)
    assert (np.isclose(total, 1, rtol=0, atol=1e-9) | (total == 0)).all()
    assert (total[~has_eligible] == 0).all()
    if getattr(policy, "when_empty", None) != "shed":  # the one built-in option that turns requests away
        assert (total[has_eligible] > 0).all()


@every_policy
@settings(max_examples=examples(40), deadline=None)
@given(view=fleets(extreme=True), request_=REQUESTS)
def test_probabilities_of_any_fleet(policy: Policy, view: FakeView, request_: Request) -> None:
    before = {name: column.copy() for name, column in view.columns().items()}
    result = policy.probabilities(request_, view)
    check(policy, result, view)
    # The view's arrays refuse to be written to; this says the same of anything that went around it.
    assert all(
        np.array_equal(column, before[name], equal_nan=name in COLUMNS) for name, column in view.columns().items()
    )
    assert np.array_equal(result, policy.probabilities(request_, view)), "equal inputs, other outputs"
    result[...] = 0.0  # the caller's to write to, and not kept
    check(policy, policy.probabilities(request_, view), view)


@every_policy
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), view=fleets(extreme=True), request_=REQUESTS)
def test_reordering_workers_only_reorders_probabilities(
    policy: Policy, data: st.DataObject, view: FakeView, request_: Request
) -> None:
    if not policy.equivariant:
        pytest.skip("declared to depend on the order")
    order = np.array(data.draw(st.permutations(range(view.eligible.shape[-1]))), int)
    expected = policy.probabilities(request_, view)[order]
    np.testing.assert_allclose(policy.probabilities(request_, view.map(order)), expected, rtol=1e-9, atol=1e-12)


@every_policy
@pytest.mark.parametrize("leading", [(3,), (2, 2), (1,), (0,)])
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_a_batch_equals_its_single_views_bit_for_bit(
    policy: Policy, leading: tuple[int, ...], data: st.DataObject
) -> None:
    view = data.draw(fleets(leading=leading, extreme=True))
    words = st.lists(st.integers(0, 2**64 - 1), min_size=int(np.prod(leading)), max_size=int(np.prod(leading)))
    numbers, keys = (np.array(data.draw(words), np.uint64).reshape(*leading, 1) for _ in range(2))
    batch = policy.probabilities(Request("m", number=numbers, key=keys), view)
    check(policy, batch, view)
    for index in np.ndindex(*leading):
        request = Request("m", number=int(numbers[index][0]), key=int(keys[index][0]))
        assert np.array_equal(batch[index], policy.probabilities(request, view.row(*index)))


@every_policy
def test_a_single_eligible_worker_gets_everything(policy: Policy) -> None:
    assert policy.probabilities(Request("m", key=1), make_view(1)).tolist() == [1]
    eligible = np.arange(1000) == 700
    assert policy.probabilities(Request("m", key=1), make_view(1000, eligible=eligible)).tolist() == eligible.tolist()


@every_policy
def test_a_policy_is_a_value(policy: Policy) -> None:
    assert policy == dataclasses.replace(policy)
    assert hash(policy) == hash(dataclasses.replace(policy))
    assert all(field.metadata["doc"] for field in dataclasses.fields(policy))
