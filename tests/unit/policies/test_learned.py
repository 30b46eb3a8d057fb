"""The learned policy: hand-computed inputs, the prior without training, what it says of itself."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.fleets import make_router, model, report
from support.views import FakeView, make_view

from balancer.server.page.explain import explain
from policies.base import FloatArray, Request
from policies.expected_latency import ExpectedLatency
from policies.learned import Learned
from policies.learned.artifact import make_artifact, read_artifact, write_artifact
from policies.learned.features import FEATURES, NO_TOLLS, TERMS, Numbers, inputs
from policies.learned.network import Network, shapes, untrained
from policies.learned.policy import EXPECTED, GROUPS

ROWS = Request("m", rows=3, deadline_s=0.5)


def learned(network: Network, highest: float = 20.0) -> Learned:
    f = len(FEATURES)
    return Learned(artifact=make_artifact(network, np.zeros(f), np.full(f, highest), {}))


def random_network(seed: int = 0) -> Network:
    generator = np.random.default_rng(seed)
    weights = {name: 0.3 * generator.standard_normal(shape) for name, shape in shapes(5).items()}
    return Network(**weights | {"beta": np.array(7.0)})


def busy(n: int = 9, seed: int = 0) -> FakeView:
    generator = np.random.default_rng(seed)
    backlog_s = generator.exponential(0.1, n)
    return make_view(
        n,
        eligible=np.arange(n) % 4 != 3,
        pending=generator.poisson(4, n),
        in_flight=generator.poisson(2, n),
        reported_pending=generator.poisson(3, n),
        backlog_s=backlog_s,
        completion_s=backlog_s + generator.exponential(0.02, n),
        service_s=generator.uniform(0.01, 0.04, n),
        latency_s=generator.exponential(0.1, n),
        report_age_s=generator.uniform(0, 0.1, n),
        pending_other_models=generator.uniform(0, 2, n),
        work_behind_s=generator.exponential(0.02, n),
        cached=generator.uniform(0, 1, n),
        saving_s=generator.uniform(0, 0.001, n),
    )


def test_inputs_of_two_workers_by_hand() -> None:
    view = make_view(
        eligible=[True, True, False],
        pending=[2, 6, 50],
        in_flight=[2, 1, 0],
        reported_pending=[1, 7, 9],
        backlog_s=[0.2, 0.1, 0.0],
        completion_s=[0.3, 0.14, 0.01],
        service_s=[0.1, 0.02, 0.001],
        latency_s=[0.6, 0.0, 0.0],
        error_rate=[0.1, 0.0, 0.0],
        report_age_s=[0.07, np.inf, 0.0],
        pending_other_models=[1, 0, 20],
        work_behind_s=[0.1, 0, 0],
        cached=[0.0, 0.5, 0.0],
        saving_s=[0.01, 0.02, 0.0],
    )
    given = inputs(ROWS, view)
    ratios = {f.name: np.expm1(given.features[:2, i]).tolist() for i, f in enumerate(FEATURES)}
    costs = {t.name: given.terms[:2, i].tolist() for i, t in enumerate(TERMS)}
    # completion - 0.5 * behind + 1 s * errors + marginal * (0.2 * pending of its own model + 0.5 * of the others).
    cost = [0.3 - 0.5 * 0.1 + 0.1 + 0.1 * (0.2 * 1 + 0.5 * 1), 0.14 + 0.04 * 0.2 * 6]
    best, saved = cost[1], 16 * 0.5 * 0.02
    expected_ratios = {
        "excess": [cost[0] / best - 1, 0],
        "backlog": [2, 5],
        "slowness": [4, 0],
        "marginal": [1, 2],
        "externality": [0.1 * 2 / best, 0.04 * 6 / best],
        "externality_other_models": [0.1 * 1 / best, 0],
        "saving": [0, saved / best],
        "cached": [0, 0.5],
        "pending": [2, 6],
        "pending_of_peers": [0, 5],
        "reported_pending": [1, 7],
        "staleness": [0.07 / best, 100],
        "error_rate": [0.1, 0],
        "latency": [0.6 / cost[0], 0],
        "urgency": [cost[0] / 0.5, best / 0.5],
        "rows": [3, 3],
        "workers": [2, 2],
        "load": [best / 0.02, best / 0.02],
        "mean_pending": [4, 4],
    }
    expected_costs = {
        "backlog": [0.2 / best, 0.1 / best],
        "marginal": [0.1 / best, 0.04 / best],
        "externality": [0.1 * 2 / best, 0.04 * 6 / best],
        "externality_other_models": [0.1 * 1 / best, 0],
        "saving": [0, saved / best],
        "service": [0.1 / best, 0.02 / best],
        "latency": [0.6 / best, 0],
        "staleness": [0.07 / best, 1000],
    }
    assert ratios == {name: pytest.approx(values, abs=1e-9) for name, values in expected_ratios.items()}
    assert costs == {name: pytest.approx(values, abs=1e-9) for name, values in expected_costs.items()}
    assert given.relative_cost.tolist() == [pytest.approx(cost[0] / best - 1), pytest.approx(-saved / best), np.inf]
    assert given.best_s.tolist() == [pytest.approx(best)]


def test_untrained_it_is_expected_latency() -> None:
    view = dataclasses.replace(busy(), cached=np.zeros(9))  # what a cache saves, the scale of its softmin knows too
    np.testing.assert_allclose(
        learned(untrained(beta=20.0)).probabilities(ROWS, view),
        ExpectedLatency(temperature=0.05).probabilities(ROWS, view),
        rtol=1e-12,
    )


def test_a_toll_is_so_many_services_for_the_worker_or_its_kind() -> None:
    """Of three that are alike but for what they owe, the one whose toll the others' queues do not outweigh is left."""
    owed = np.array([[0.25, 3.0], [0.5, 2.0], [0.75, 9.0], *NO_TOLLS])
    policy = learned(untrained(beta=1e3)._replace(tolls=owed))
    view = make_view(3, service_s=0.1, identity=[0.25, 0.1, 0.2], kind_identity=[0.75, 0.5, 0.6])
    assert inputs(Request("m"), view, tolls=owed).toll_s.tolist() == pytest.approx([0.3, 0.2, 0.0])
    assert policy.probabilities(Request("m"), view).tolist() == pytest.approx([0, 0, 1])
    longer = dataclasses.replace(view, completion_s=np.array([0.1, 0.15, 0.4]))
    assert policy.probabilities(Request("m"), longer).tolist() == pytest.approx([0, 1, 0])
    assert policy.contributions(Request("m"), longer)["toll"].tolist() == pytest.approx([-0.3, -0.2, 0.0])


def test_with_the_numbers_of_expected_latency_it_is_that_for_prompts_too() -> None:
    options = {"error_penalty_s": 2.0, "delayed_share": 0.5, "delayed_share_other_models": 1.5}
    options |= {"work_behind_share": 0.2, "saving_factor": 4.0, "ttft_weight": 0.3}
    view = dataclasses.replace(
        busy(),
        first_token_s=np.linspace(0.05, 0.2, 9),
        prompt_s=np.linspace(0.02, 0.1, 9),
        slowdown_s=np.linspace(0.001, 0.01, 9),
        matched_tokens=np.array([0.0, 900, 0, 100, 300, 0, 0, 50, 0]),
        error_rate=np.linspace(0, 0.1, 9),
    )
    numbers = np.array([options[name] for name in Numbers._fields])
    policy = learned(untrained(beta=1e6)._replace(numbers=numbers))
    for request in (ROWS, Request("m", prompt_tokens=1000.0)):
        best = ExpectedLatency(temperature=0.0, **options).probabilities(request, view)
        assert best.max() == 1.0
        np.testing.assert_allclose(policy.probabilities(request, view), best, atol=1e-9)


def by_hand(n: Network, x: FloatArray, z: FloatArray, eligible: FloatArray) -> list[float]:
    """The formula of the README, worker by worker."""
    h = [np.maximum(n.b1 + sum(x[i, k] * n.w1[k] for k in range(x.shape[1])), 0) for i in range(len(x))]
    c = sum(h[i] for i in range(len(x)) if eligible[i]) / max(eligible.sum(), 1)
    return [
        float(np.maximum(h[i] @ n.w2 + c @ n.context + n.b2, 0) @ n.out - z[i] @ (c @ n.mix + n.bias))
        for i in range(len(x))
    ]


def test_the_network_is_the_formula() -> None:
    view, network = busy(), random_network()
    given = inputs(ROWS, view)
    term = network.term(given.features, given.terms, view.eligible)
    assert term.tolist() == pytest.approx(by_hand(network, given.features, given.terms, view.eligible))
    score = 7.0 * (term - given.relative_cost)
    expected = np.where(view.eligible, np.exp(score - score[view.eligible].max()), 0)
    np.testing.assert_allclose(learned(network).probabilities(ROWS, view), expected / expected.sum(), rtol=1e-12)


def test_a_network_for_each_environment_is_each_by_itself() -> None:
    views = [busy(seed=seed) for seed in range(3)]
    networks = [random_network(seed) for seed in range(3)]
    given = [inputs(ROWS, view) for view in views]
    matrices = {"w1", "w2", "context", "mix"}
    stacked = {
        name: np.stack([getattr(network, name) for network in networks]) for name in Network._fields if name != "beta"
    }
    together = Network(
        **{name: array if name in matrices else array[:, None] for name, array in stacked.items()},
        beta=np.full((3, 1), 7.0),
    ).term(
        np.stack([one.features for one in given]),
        np.stack([one.terms for one in given]),
        np.stack([view.eligible for view in views]),
    )
    for e in range(3):
        alone = networks[e].term(given[e].features, given[e].terms, views[e].eligible)
        np.testing.assert_array_equal(together[e], alone)


def test_order_of_workers_changes_rounding_only() -> None:
    """The mean over workers is a sum, whose last bits depend on the order; beta times a score of hundreds shows it."""
    farthest = 0.0
    for seed in range(200):
        view, policy = busy(12, seed), Learned()
        order = np.random.default_rng(seed).permutation(12)
        moved = policy.probabilities(ROWS, view.map(order)) - policy.probabilities(ROWS, view)[order]
        farthest = max(farthest, float(np.abs(moved).max()))
    assert farthest < 1e-12


def test_within_the_range_of_training_is_zero_and_beyond_is_in_widths_of_it() -> None:
    view = make_view(pending=[0, np.e**2 - 1])
    assert learned(untrained(), highest=20.0).out_of_range(Request("m"), view) == 0
    narrow = learned(untrained(), highest=20.0)
    highest = narrow.loaded.highest.copy()
    highest[[f.name for f in FEATURES].index("pending")] = 0.5
    narrow = Learned(artifact=make_artifact(untrained(), narrow.loaded.lowest, highest, {}))
    assert narrow.out_of_range(Request("m"), view) == pytest.approx((2 - 0.5) / 0.5)
    out = make_view(pending=[0, np.e**2 - 1], eligible=[True, False])
    assert narrow.out_of_range(Request("m"), out) == 0  # nobody asks of those that cannot be picked


def test_where_no_network_corrects_the_cost_no_input_is_strange() -> None:
    view = make_view(pending=[0, 9])
    assert learned(untrained(0), highest=0.0).out_of_range(Request("m"), view) == 0
    coefficients = untrained(0)._replace(bias=np.full(len(TERMS), 0.1))
    assert learned(coefficients, highest=0.0).out_of_range(Request("m"), view) > 0


def test_a_file_is_read_by_name_and_without_it_the_policy_says_what_to_do() -> None:
    made = learned(random_network()).loaded
    content = write_artifact(dataclasses.replace(made, digest="made by hand"))
    with pytest.raises(ValueError, match=r"mine.npz is damaged"):
        Learned(file="mine.npz").with_files({"mine.npz": content}.__getitem__)
    policy = Learned(file="mine.npz").with_files({"mine.npz": write_artifact(made)}.__getitem__)
    assert policy.digest == made.digest == read_artifact(write_artifact(made), "f").digest
    assert policy.options() == {"file": "mine.npz"}
    assert policy != Learned(file="mine.npz")
    assert "artifact" not in repr(policy)
    with pytest.raises(ValueError, match=r"mine.npz was not read; make the policy by build_policy"):
        Learned(file="mine.npz").probabilities(ROWS, busy())


def test_every_input_that_differs_between_workers_is_in_a_group() -> None:
    names = {f.name for f in FEATURES} | {t.name for t in TERMS}
    alike = {"rows", "workers", "load", "mean_pending"}
    grouped = [name for group in GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(names - alike)
    x = inputs(ROWS, busy()).features
    assert {f.name for i, f in enumerate(FEATURES) if np.ptp(x[:, i]) == 0} - alike <= {"error_rate"}


def test_contributions_without_training_are_the_expected_completion_in_seconds() -> None:
    view = make_view(completion_s=[0.3, 0.1, 0.2], eligible=[True, True, False])
    found = learned(untrained()).contributions(Request("m"), view)
    assert found[EXPECTED][:2] == pytest.approx([-0.2, 0])
    assert all(np.all(values == 0) for name, values in found.items() if name != EXPECTED)


def test_contributions_tell_which_input_it_was() -> None:
    cost_of_queue = np.zeros(len(TERMS))
    cost_of_queue[[t.name for t in TERMS].index("latency")] = 2.0
    policy = learned(untrained()._replace(bias=cost_of_queue))
    view = make_view(completion_s=[0.1, 0.1], latency_s=[0.4, 0.0])
    found = policy.contributions(Request("m"), view)
    # Twice the latency counts as a cost; without it each worker would have the mean.
    assert found["recent latency"].tolist() == pytest.approx([-2 * 0.2, 2 * 0.2])
    assert all(np.all(values == 0) for name, values in found.items() if name != "recent latency")


def test_explain_shows_what_moved_the_pick_in_seconds() -> None:
    router = make_router(3, Learned(), models=[model("m", batches=((1, 50, 1.0),))])
    router.observe(report("w1", 2, models=[model("m", batches=((1, 100, 2.0),), pending=40.0)], balancers=2), 0.0)
    page: dict[str, Any] = explain(router, Request("m"), 0.01)
    assert page["moved_by_is_in"] == "seconds of expected completion"
    free, full, _ = page["workers"]
    assert full["probability"] < 0.01 < free["probability"]
    assert set(full["moved_by"]) <= set(GROUPS)
    assert len(full["moved_by"]) == 5
    assert sum(full["moved_by"].values()) < 0 < sum(free["moved_by"].values())
