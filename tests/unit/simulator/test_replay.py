"""A recorded log decided again in batches: the same decisions, bit for bit, and what another policy would have done."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from support.decision_logs import LIMITS, recorded, write
from support.fleets import make_router
from support.weights import write_weights

from balancer.config.policy_options import build_policy
from balancer.kernel.compiled.library import Compiled, Library
from balancer.scheduler.errors import RoutingError
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog, DecisionLogError, RecordedDecision
from policies import BUILTIN
from policies.base import FleetView, FloatArray, Policy, Request, option
from policies.columns import Columns
from policies.consistent_hash import ConsistentHash
from policies.least_requests import LeastRequests
from policies.power_of_two import PowerOfTwo
from policies.random_choice import RandomChoice
from policies.token_bucket import TokenBucket
from simulator.replay import columns_of, replay

WITH_OPTIONS = [
    PowerOfTwo(choices=3, weighted=True),
    LeastRequests(choices=2),
    RandomChoice(weighted=True),
    ConsistentHash(load="in_flight"),
    BUILTIN["prequal"](pool=0, latency="expected"),  # type: ignore[call-arg]  # options of this one
    BUILTIN["expected_latency"](temperature=0.5),  # type: ignore[call-arg]  # options of this one
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("policy", [*(kind() for kind in BUILTIN.values()), *WITH_OPTIONS], ids=lambda each: each.name)
def test_every_policy_decides_the_same_again_in_every_bit(policy: Policy, compiled: bool, tmp_path: Path) -> None:
    kernel = Compiled(Library()) if compiled else None
    if policy.name == "learned":
        weights = tmp_path.with_suffix(".npz")
        write_weights(weights)
        policy = build_policy("learned", {"file": str(weights)})
    log = recorded(tmp_path, policy, settings=LIMITS, seed=3, kernel=kernel)
    assert all(run.compiled == compiled for run in log.runs)
    result = replay(log)
    assert result.exact, result.mismatches
    assert not result.mismatches
    assert not result.changed
    np.testing.assert_array_equal(result.recorded, result.replayed)
    assert sum(compared.decisions for compared in result.compared) == len(log) > 300
    assert {(compared.policy, compared.role) for compared in result.compared} >= {
        (policy.name, "in_force"),
        ("consistent_hash", "hash"),  # the router's, for sequences at least
    }


def test_what_a_policy_sheds_is_shed_again(tmp_path: Path) -> None:
    router = make_router(2, TokenBucket(when_empty="shed"))
    files, _ = write(tmp_path, router)
    picks = []
    for _ in range(80):
        try:
            picks.append(router.route(Request("m"), 0.0).worker)
        except RoutingError:
            picks.append("shed")
    files.close(wait_s=30)
    result = replay(read_log(tmp_path))
    assert result.exact
    assert np.count_nonzero(result.replayed == -1) == picks.count("shed") > 0


@dataclasses.dataclass(frozen=True)
class Broken(Policy):
    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "Answers nothing valid."
    source: ClassVar[str] = "nobody"

    weighted: bool = option(False, "As the policy has it whose name this takes")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        raise RuntimeError("broken")


def test_where_the_least_pending_stood_in_it_does_again(tmp_path: Path) -> None:
    log = recorded(tmp_path, Broken(), seed=5)
    result = replay(log)
    assert result.exact
    assert any(not decision.valid for decision in log)
    assert result.changed == ("the source of policy random is not the one that decided",)


def test_another_processor_is_told(tmp_path: Path) -> None:
    log = recorded(tmp_path, BUILTIN["wlpr"](), requests=20)
    log.runs[0] = dataclasses.replace(log.runs[0], arithmetic="NumPy 1.0, exp ABACUS")
    (said,) = replay(log).changed
    assert said.startswith("decided with NumPy 1.0, exp ABACUS; here is NumPy ")


def changed(log: DecisionLog, index: int, **fields: object) -> DecisionLog:
    decisions: list[RecordedDecision] = list(log.decisions)
    decisions[index] = dataclasses.replace(decisions[index], **fields)  # type: ignore[arg-type]  # by name
    return DecisionLog(log.runs, decisions, log.refusals, log.outcomes, log.questions, log.cut)


def test_one_bit_is_a_difference_and_is_told(tmp_path: Path) -> None:
    log = recorded(tmp_path, BUILTIN["expected_latency"](), requests=60, seed=6)
    nudged = log.decisions[7].probabilities.copy()
    place = int(nudged.argmax())
    nudged[place] = np.nextafter(nudged[place], 2)
    result = replay(changed(log, 7, probabilities=nudged))
    assert not result.exact
    (mismatch,) = result.mismatches
    assert (mismatch.decision, mismatch.what) == (7, "probabilities")
    assert repr(float(nudged[place])) in mismatch.recorded
    other = (log.decisions[9].pick + 1) % len(log.decisions[9].workers.names)
    (mismatch,) = replay(changed(log, 9, pick=other)).mismatches
    names = log.decisions[9].workers.names
    assert (mismatch.what, mismatch.recorded, mismatch.replayed) == (
        "picks",
        names[other],
        names[log.decisions[9].pick],
    )


def test_another_policy_takes_the_place_of_the_one_in_force_only(tmp_path: Path) -> None:
    log = recorded(tmp_path, RandomChoice(), seed=7)
    other = BUILTIN["wlpr"]()
    result = replay(log, other)
    for index, decision in enumerate(log):
        router = decision.policy.in_force
        alone = other.probabilities(decision.request, one_view(decision)) if router else decision.probabilities
        assert result.probability[index] == alone[decision.pick] / alone.sum()
    assert 0.2 < result.agreement < 1
    keyed = np.array([not decision.policy.in_force for decision in log])
    np.testing.assert_array_equal(result.recorded[keyed], result.replayed[keyed])
    # A policy that places keys itself is asked for them too, as the router would; sequences stay where they are.
    taken = replay(log, ConsistentHash(balance_factor=1.01, floor=0.0))
    moved = taken.recorded != taken.replayed
    sequences = np.array([decision.request.sequence for decision in log])
    assert not moved[sequences].any()
    assert moved[keyed & ~sequences].any()


def one_view(decision: RecordedDecision) -> FleetView:
    batch = columns_of([decision])
    return Columns(**{f.name: getattr(batch, f.name)[0] for f in dataclasses.fields(batch)})


def test_a_policy_that_is_not_installed_is_named(tmp_path: Path) -> None:
    class Stranger(LeastRequests):
        name: ClassVar[str] = "stranger"

    log = recorded(tmp_path, Stranger(), requests=20)
    with pytest.raises(DecisionLogError, match=r"policy stranger .* install the distribution"):
        replay(log)
    assert replay(log, LeastRequests()).agreement > 0
