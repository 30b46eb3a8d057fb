"""What guards, a rollout and splits have decided, so that the next process begins with it rather than anew."""

from collections.abc import Mapping
from typing import NamedTuple

from balancer.scheduler.canary.guard import Guard
from balancer.scheduler.canary.selector import PolicySelector
from balancer.scheduler.canary.split import Split
from balancer.scheduler.canary.switchback import Finding

FINISHED, RETURNED, FALLEN = "finished", "returned", "fallen"
ROLLOUT, GUARD, NEW_GUARD = "rollout", "guard", "guard of the new policy"
"""Names of trials; a split's is `split_of` its model."""


class Verdict(NamedTuple):
    state: str
    reason: str = ""
    words: str = ""
    quiet_s: float = 0.0
    """Of a guard that fell: how long no cause may be seen before the policy returns."""


def split_of(model: str) -> str:
    return f"split {model}"


def decided(selector: PolicySelector | None, splits: Mapping[str, Split]) -> dict[str, Verdict]:
    """By trial, of those that have decided something."""
    found = {
        split_of(model): Verdict(RETURNED, "", split.returned) for model, split in splits.items() if split.returned
    }
    if selector is None:
        return found
    rollout = selector.rollout
    if rollout is not None and rollout.over:
        found[ROLLOUT] = Verdict(rollout.state, *(rollout.finding or ()))
    for name, guard in _guards(selector).items():
        if guard is not None and (breach := guard.breach) is not None:
            found[name] = Verdict(FALLEN, *breach.finding, breach.quiet_s)
    return found


def resume(selector: PolicySelector | None, verdicts: Mapping[str, Verdict], now_s: float) -> None:
    """Have trials that are new begin with what the same ones came to before. A guard's quiet period begins anew."""
    if selector is None:
        return
    verdict = verdicts.get(ROLLOUT)
    if verdict is not None and selector.rollout is not None:
        if verdict.state == FINISHED:
            selector.rollout.resume_finished()
        elif verdict.state == RETURNED:
            selector.rollout.resume_returned(Finding(verdict.reason, verdict.words))
    for name, guard in _guards(selector).items():
        verdict = verdicts.get(name)
        if guard is not None and verdict is not None and verdict.state == FALLEN:
            guard.resume_fallen(Finding(verdict.reason, verdict.words), verdict.quiet_s, now_s)


def resume_splits(splits: Mapping[str, Split], verdicts: Mapping[str, Verdict]) -> None:
    for model, split in splits.items():
        verdict = verdicts.get(split_of(model))
        if verdict is not None and verdict.state == RETURNED:
            split.returned = verdict.words or "it did worse before the balancer was started anew"


def _guards(selector: PolicySelector) -> dict[str, Guard | None]:
    return {GUARD: selector.guard, NEW_GUARD: selector.new_guard}
