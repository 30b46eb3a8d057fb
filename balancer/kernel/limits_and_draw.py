"""Who is left within the limits, who is drawn, and who is tried next. Over one fleet's arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from balancer.kernel.estimators.queue import peer_share_left, pending_now
from balancer.kernel.estimators.service import WELL_KNOWN
from balancer.kernel.state import (
    KEY_MEMORY,
    MAX_FALLBACKS,
    MAX_PENDING,
    PROPENSITY,
    REPORTS_REQUIRED,
    SAMPLED,
    SHED_LATE,
    SHEDDABLE_PENDING,
    SHEDDABLE_PRIORITY,
    SLOW_START_S,
    STALE_AFTER_S,
    ZONE_BOUND_S,
    AnyArray,
    FleetState,
    RequestFeatures,
)
from balancer.kernel.worker_columns import completion_s, pending
from policies.base import FloatArray
from policies.hashing import hash_draw, mix_array, unit_array

SAMPLED_OF = 16.0
"""How many times as many workers as a decision looks at there are at least, where it does not look at all."""
_OF_SAMPLES = np.uint64(0x9E6C63D0676A9A99)
_ALL_HASHES = 2.0**64


def received(x: FleetState, r: int, now_s: float) -> None:
    x.decision.reported_s[r] = now_s
    if x.decision.since_s[r] == -np.inf:
        x.decision.since_s[r] = now_s


def is_fresh(x: FleetState, e: int, r: int, now_s: float) -> bool:
    return bool(now_s - x.decision.reported_s[r] <= x.decision.settings[e, STALE_AFTER_S])


def keep_fresh(x: FleetState, e: int, first: int, now_s: float, mask: AnyArray) -> int:
    """Leave in `mask`, `(n,)`, the fresh ones, if there are any or reports do not matter; return how many are left.

    `first` is the row of the first worker.
    """
    fresh, count = 0, 0
    for w in range(len(mask)):
        count += mask[w]
        fresh += mask[w] and is_fresh(x, e, first + w, now_s)
    if not fresh or not x.decision.settings[e, REPORTS_REQUIRED]:
        return int(count)
    for w in range(len(mask)):
        mask[w] = mask[w] and is_fresh(x, e, first + w, now_s)
    return int(fresh)


def fresh_until_s(x: FleetState, e: int, first: int, workers: int, now_s: float) -> float:
    """When the first of the workers that are fresh now no longer is; what else changes it is a report."""
    oldest_s = np.inf
    for r in range(first, first + workers):
        if is_fresh(x, e, r, now_s):
            oldest_s = min(oldest_s, x.decision.reported_s[r])
    return float(oldest_s + x.decision.settings[e, STALE_AFTER_S])


def leave_out_newcomers(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float) -> None:
    """Leave in `decision.mask` a worker whose service time with the model is not known for part of the requests only.

    That part grows from nothing to all over `SLOW_START_S`, or over the time for which the oldest of them has been
    there, if that is shorter: who came together shares alike. So the oldest always stays. Which requests they are is
    decided by a draw of worker and key, or number: those that a newcomer once got it gets from then on, from every
    balancer.
    """
    over_s = x.decision.settings[e, SLOW_START_S]
    if over_s <= 0:
        return
    mask, oldest_s = x.decision.mask[e], 0.0
    for w in range(len(mask)):
        if mask[w]:
            oldest_s = max(oldest_s, now_s - x.decision.since_s[first + w])
    over_s = min(over_s, oldest_s)
    for w in range(len(mask)):
        r = first + w
        age_s = now_s - x.decision.since_s[r]
        if mask[w] and age_s < over_s and x.service.weight[r, request.model] < WELL_KNOWN:
            # Of another hash than the one that places keys: else a newcomer would get the keys that are its own last.
            draw = hash_draw(mix_array(x.decision.name_hash[e, w]), np.uint64(request.mixed_key))
            mask[w] = draw * over_s <= age_s


def pending_limit(x: FleetState, e: int, priority: float) -> float:
    """Requests pending at a worker from which on it is not given one of that priority."""
    settings = x.decision.settings
    limit = settings[e, MAX_PENDING]
    if 0 < settings[e, SHEDDABLE_PRIORITY] <= priority:
        limit = min(limit, settings[e, SHEDDABLE_PENDING])
    return float(limit)


def keep_within_limits(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
    """Leave those in `decision.mask` that the limits, a slow start and zones permit, and return how many they are.

    None is left where every one is full, or where the best would be late and that sheds.
    """
    leave_out_newcomers(x, e, first, request, now_s)
    mask = x.decision.mask[e]
    limit = pending_limit(x, e, request.priority)
    if limit < np.inf:
        for w in range(len(mask)):
            mask[w] = mask[w] and pending(x, e, w, first + w, request, now_s) < limit
    count = int(np.count_nonzero(mask))
    sheds_late = count > 0 and x.decision.settings[e, SHED_LATE] and request.deadline_s < np.inf
    if sheds_late and best_s(x, e, first, request, now_s) > request.deadline_s:
        return 0
    return keep_near(x, e, first, request, now_s) if x.decision.settings[e, ZONE_BOUND_S] >= 0 else count


def keep_near(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
    """Leave the nearest tiers alone in `decision.mask`, as few as have a worker that is expected to be done soon
    enough: no more than the bound later than the best of all farther ones. Returns how many workers are left.

    A key belongs to one worker, whichever zone asks.
    """
    if request.keyed:
        return int(np.count_nonzero(x.decision.mask[e]))
    mask, done_s, tier = x.decision.mask[e], x.decision.pending[e], x.decision.tier
    for w in range(len(mask)):
        done_s[w] = completion_s(x, e, w, first + w, request, now_s) if mask[w] else np.inf
    reach = next_tier(x, e, first, -1.0)
    while is_late(x, e, first, reach):
        reach = next_tier(x, e, first, reach)
    for w in range(len(mask)):
        mask[w] = mask[w] and tier[first + w] <= reach
    return int(np.count_nonzero(x.decision.mask[e]))


def is_late(x: FleetState, e: int, first: int, reach: float) -> bool:
    """Whether a worker farther than the tier `reach` is done sooner by more than the bound than all up to there.

    As `keep_near` left it in `decision.pending`; none is where nobody is farther.
    """
    near_s = far_s = np.inf
    for w in range(x.decision.mask.shape[1]):
        if x.decision.tier[first + w] <= reach:
            near_s = min(near_s, x.decision.pending[e, w])
        else:
            far_s = min(far_s, x.decision.pending[e, w])
    return bool(near_s > far_s + x.decision.settings[e, ZONE_BOUND_S])


def next_tier(x: FleetState, e: int, first: int, after: float) -> float:
    """The least tier above `after` of those in `decision.mask`; `after` where there is none."""
    found = -1.0
    for w in range(x.decision.mask.shape[1]):
        tier = x.decision.tier[first + w]
        if x.decision.mask[e, w] and tier > after and (found < 0 or tier < found):
            found = tier
    return found if found >= 0 else after


def best_s(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float) -> float:
    """The least `completion_s` of those in `decision.mask`."""
    found_s = np.inf
    for w in range(x.decision.mask.shape[1]):
        if x.decision.mask[e, w]:
            found_s = min(found_s, completion_s(x, e, w, first + w, request, now_s))
    return found_s


def keep_sampled(x: FleetState, e: int, request: RequestFeatures, count: int) -> int:
    """Leave about `SAMPLED` of the `count` workers in `decision.mask`, where they are far more; returns how many.

    A draw of worker and key, or number, decides who: a key has the same ones each time and at every balancer, and most
    of them still when workers come or go. Those that have most of the request's prompt stay, unless they are many.
    """
    settings, mask, kept = x.decision.settings, x.decision.mask[e], x.decision.candidate[e]
    sampled = settings[e, SAMPLED]
    if sampled <= 0 or count <= SAMPLED_OF * sampled or (request.keyed and settings[e, KEY_MEMORY] <= 0):
        return count
    # Of another hash than those that place keys and spare newcomers: neither is to be likelier in the sample.
    salted, below = np.uint64(request.mixed_key) ^ _OF_SAMPLES, np.uint64(sampled / count * _ALL_HASHES)
    left = 0
    for w in range(len(mask)):
        kept[w] = mask[w] and mix_array(x.decision.name_hash[e, w] ^ salted) < below
        left += kept[w]
    if request.prompt_tokens > 0:
        left += keep_holders(x, e, sampled)
    if not left:
        return count
    for w in range(len(mask)):
        mask[w] = kept[w]
    return int(left)


def keep_holders(x: FleetState, e: int, at_most: float) -> int:
    """Add to `decision.candidate` those of `decision.mask` that have most of the prompt, unless they are more than
    `at_most`; returns how many came to it."""
    mask, kept, matched = x.decision.mask[e], x.decision.candidate[e], x.decision.matched[e]
    most, holders, added = 0.0, 0, 0
    for w in range(len(mask)):
        if mask[w] and matched[w] > most:
            most, holders = matched[w], 0
        holders += mask[w] and matched[w] == most
    if most > 0 and holders <= at_most:
        for w in range(len(mask)):
            added += mask[w] and matched[w] == most and not kept[w]
            kept[w] = kept[w] or (mask[w] and matched[w] == most)
    return added


def uniform_of(seed: int, number: int) -> float:
    """The draw of the decision of that number, uniform in [0, 1); `seed` is mixed, both have 64 bits."""
    return float(unit_array(mix_array(seed ^ number)))


def total_of(shares: Sequence[float] | FloatArray) -> float:
    """Their sum, from left to right."""
    total = 0.0
    for w in range(len(shares)):
        total += shares[w]
    return total


def draw(shares: Sequence[float] | FloatArray, uniform: float) -> int:
    """The worker whose interval of the shares the draw is in; -1 where all shares are zero."""
    total, cumulative = total_of(shares), 0.0
    if total > 0:
        for w in range(len(shares)):
            if shares[w] > 0:
                cumulative += shares[w]
                if cumulative > uniform * total:
                    return w
    return -1


def draw_by_sums(shares: FloatArray, uniform: float, sums: FloatArray) -> int:
    """As `draw`; writes `sums`, `(n,)`: of the shares up to each worker. The last is `total_of` them.

    It adds them up once, one after the other, and counts those past the draw, without branches.
    """
    total, past = 0.0, 0
    for w in range(len(shares)):
        total += shares[w]
        sums[w] = total
    for w in range(len(shares)):
        past += sums[w] > uniform * total
    return len(shares) - past if past else -1


def draw_worker(x: FleetState, e: int, uniform: float, found: FloatArray) -> int:
    """Who is drawn by `decision.shares`, -1 where all are zero; writes its propensity."""
    shares = x.decision.shares[e]
    sums = x.decision.scratch[e, : len(shares)]
    w = draw_by_sums(shares, uniform, sums)
    if w >= 0:
        found[PROPENSITY] = shares[w] / sums[-1]
    return w


def name_least(line: Any, count: int, out: Any) -> int:
    """Write the places of the `count` least numbers of `line`, the least first; returns how many finite ones there are.

    They are infinite in `line` then.
    """
    for i in range(count):
        found = -1
        for w in range(len(line)):
            if line[w] < np.inf and (found < 0 or line[w] < line[found]):
                found = w
        if found < 0:
            return i
        out[i] = found
        line[found] = np.inf
    return count


def name_fallbacks(
    x: FleetState, e: int, first: int, picked: int, request: RequestFeatures, now_s: float, out: AnyArray
) -> int:
    """Write the workers with the least pending after the one picked, best first, as many as there is room; -1: none.

    Returns how many they are.
    """
    line, mask = x.decision.pending[e], x.decision.mask[e]
    # By itself and for all of them, which vectorises.
    for w in range(len(line)):
        line[w] = pending_now(x.queue, first + w, peer_share_left(x.queue, first + w, now_s))
    for w in range(len(line)):
        line[w] = line[w] if mask[w] else np.inf
    line[picked] = np.inf
    out[:] = -1
    return name_least(line, min(len(out), int(x.decision.settings[e, MAX_FALLBACKS])), out)
