"""What a run amounts to, measured and predicted side by side. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.load.arrivals import FloatArray
from balancer.load.result import LoadResult
from dev.experiments.live import twin
from dev.experiments.live.figures import Findings, Pair, Requests, find
from dev.experiments.live.record import Recording
from simulator.compare.text import plain
from simulator.result import Result
from simulator.spec import FleetSpec

SEEDS = 32
_LEAST_OWN = 0.8
"""A guard that finds nothing wrong gives its baseline one request in twenty, to compare."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Share of a policy's requests that each worker answered, in the order of the fleet; `(n,)` each."""

    measured: FloatArray
    predicted: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    recording: Recording
    fleet: FleetSpec
    live: Requests
    simulated: Sequence[Requests]
    whole: Findings
    models: dict[str, Findings]
    shares: dict[str, Shares]
    executions: FloatArray
    """Simulated ones of each worker, mean over seeds, `(n,)`."""

    @property
    def when(self) -> str:
        return next(iter(self.recording.profiles.values())).measured_at.partition("T")[0]

    @property
    def subject(self) -> str:
        return self.recording.session.policies[-1]

    def own_decisions(self) -> dict[str, float]:
        """Share of the decisions in each policy's windows that were its own, not its guard's baseline's."""
        own: dict[str, float] = dict.fromkeys(self.recording.session.policies, 0.0)
        total = dict(own)
        for turn, decided in zip(self.recording.session.turns(), self.recording.decided, strict=True):
            own[turn.policy] += decided.get(turn.policy, 0.0)
            total[turn.policy] += sum(decided.values())
        return {policy: own[policy] / total[policy] if total[policy] else 0.0 for policy in own}

    def problems(self) -> list[str]:
        """What makes the run unfit to be reported; empty where nothing does."""
        session = self.recording.session
        found = [
            f"{count} of the requests that count under {policy} failed"
            for policy, count in zip(session.policies, self.live.failed.tolist(), strict=True)
            if count
        ]
        for policy, share in self.own_decisions().items():
            if share < _LEAST_OWN:
                found.append(
                    f"{policy} itself decided {share:.0%} of the requests in its windows: its guard took it out of "
                    f"service (the log says why), or the balancer did not answer"
                )
        slowest_s = max(self.recording.swaps_s)
        if slowest_s > session.settle_s:
            found.append(f"a swap took {slowest_s:.2f} s, longer than the {session.settle_s:g} s that do not count")
        return found

    def as_json(self) -> dict[str, Any]:
        recording = self.recording
        content = {
            "session": recording.session,
            "workers": {
                name: {"emulated_device": profile.device, "weight": recording.weights[name]}
                for name, profile in recording.profiles.items()
            },
            "requests": {
                policy: int((self.live.policy == i).sum()) for i, policy in enumerate(recording.session.policies)
            },
            "own_decisions": self.own_decisions(),
            "seeds": len(self.simulated),
            "problems": self.problems(),
            "slowest_swap_s": max(recording.swaps_s),
            "all": _findings(self.whole),
            "models": {name: _findings(found) for name, found in self.models.items()},
            "share_by_worker": {
                policy: {"measured": shares.measured, "predicted": shares.predicted}
                for policy, shares in self.shares.items()
            },
        }
        made: dict[str, Any] = plain(content)
        return made


def make_report(recording: Recording, block_s: float | None = None) -> Report:
    """Simulate a run's session, and reduce both; `block_s`: see `Requests.live`.

    Raises:
        ValueError: the simulation is of other requests, or a policy has a round without.
    """
    session, sent = recording.session, recording.live
    fleet = twin.fleet(recording.profiles, recording.easy, sent.models, recording.weights, session)
    result = twin.simulate(fleet, session, range(SEEDS))
    if len(sent) != result.latency_s.shape[1]:
        raise ValueError(f"{len(sent)} requests were sent, {result.latency_s.shape[1]} simulated: run it again")
    live = Requests.live(session, sent, block_s)
    rounds = Requests.live(session, sent)
    if len({*zip(rounds.policy.tolist(), rounds.block.tolist(), strict=True)}) < len(session.policies) * session.rounds:
        raise ValueError("a policy has a window without requests: give a higher rate or longer windows")
    simulated = [Requests.simulated(session, result, seed, block_s) for seed in range(SEEDS)]
    of_seeds = [dict(each.by_model()) for each in simulated]
    return Report(
        recording=recording,
        fleet=fleet,
        live=live,
        simulated=simulated,
        whole=find(live, simulated),
        models={name: find(own, [each[name] for each in of_seeds]) for name, own in live.by_model()},
        shares={policy: _shares(recording, policy, sent, result) for policy in session.policies},
        executions=result.executions.mean(axis=0),
    )


def _shares(recording: Recording, policy: str, sent: LoadResult, result: Result) -> Shares:
    chosen = np.zeros(len(sent), np.bool_)
    for turn in recording.session.turns():
        if turn.policy == policy:
            chosen |= (turn.counted_s <= sent.scheduled_s) & (sent.scheduled_s < turn.end_s)
    names = [result.workers.index(name) for name in sent.workers] + [-1]
    by_worker = np.array(names)[sent.worker[chosen]], result.worker[:, chosen].ravel()
    counts = [np.bincount(worker[worker >= 0], minlength=len(result.workers)) for worker in by_worker]
    return Shares(*(count / max(count.sum(), 1) for count in counts))


def _findings(found: Findings) -> dict[str, Any]:
    return {
        "policies": {policy: _pairs(pairs) for policy, pairs in found.policies.items()},
        "against": {reference: _pairs(pairs) for reference, pairs in found.ratios.items()},
    }


def _pairs(pairs: Sequence[Pair]) -> dict[str, Any]:
    return {pair.figure: {"measured": pair.measured, "predicted": pair.predicted} for pair in pairs}
