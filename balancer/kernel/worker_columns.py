"""The columns of `policies.base.FleetView`, for one worker at a time.

Each takes the fleet's state, the fleet, the worker, its row as the deciding balancer knows it, the request and the
time.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from balancer.kernel.estimators.caches import saving_now_s, warm
from balancer.kernel.estimators.generation import (
    answered_now_s,
    first_token_now_s,
    output_tokens_now,
    prompt_now_s,
    slowdown_now_s,
)
from balancer.kernel.estimators.latency import error_rate_now, latency_now_s
from balancer.kernel.estimators.prefixes import cached_now, matched, waiting_now
from balancer.kernel.estimators.queue import (
    backlog_now_s,
    completion_now_s,
    forming_now,
    of_other_models,
    peer_share_left,
    pending_now,
    work_behind_now_s,
)
from balancer.kernel.estimators.service import alone_s
from balancer.kernel.estimators.tokens import TokenLimits, level_now
from balancer.kernel.state import (
    CAPACITY,
    ERROR_DECAY_S,
    KEY_MEMORY,
    LATENCY_DECAY_S,
    REFILL_PER_S,
    TARGET_PENDING,
    FleetState,
    RequestFeatures,
)
from policies.base import FloatArray
from policies.costs import DRAW, ONE
from policies.hashing import hash_draw, rendezvous_cost

_ABOVE = np.uint64(51)
"""By how many bits a model's column is moved up: beyond those that tell a key's place, with room for all models."""
_HARDLY = 0.001
"""A chance to be a key's home that is not looked into."""


def pending(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    """See `FleetView`; needs no arithmetic where all are our own."""
    if x.queue.peer_in_flight[r] == 0:
        return float(x.queue.in_flight[r])
    return float(pending_now(x.queue, r, peer_share_left(x.queue, r, now_s)))


def pending_other_models(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    """See `FleetView`; needs no arithmetic where there are none."""
    own = x.queue.known_requests[r, request.model]
    if x.queue.in_flight[r] == own:
        return 0.0
    return float(of_other_models(x.queue, r, own, pending(x, e, w, r, request, now_s)))


def backlog_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    left = float(peer_share_left(x.queue, r, now_s)) if x.queue.peer_in_flight[r] > 0 else 0.0
    return float(backlog_now_s(x.queue, r, now_s, left))


def completion_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    if request.prompt_tokens > 0:
        first_s = first_token_s(x, e, w, r, request, now_s)
        there = pending(x, e, w, r, request, now_s)
        return float(answered_now_s(x.decode, (r, request.model), first_s, output_tokens(x, r, request), there))
    before_s = backlog_s(x, e, w, r, request, now_s)
    return float(
        completion_now_s(x.queue, x.service, (r, request.model), request.rows, before_s, _forming(x, r, now_s))
    )


def output_tokens(x: FleetState, r: int, request: RequestFeatures) -> float:
    return float(output_tokens_now(x.lengths, (r, request.model), request.max_tokens))


def to_compute(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    """Tokens of the prompt that the worker would have to compute."""
    return float(max(request.prompt_tokens - matched_tokens(x, e, w, r, request, now_s), 1.0))


def waiting_tokens(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(waiting_now(x.prefixes, r, x.queue.balancers[r]))


def first_token_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    if request.prompt_tokens <= 0:
        return 0.0
    waiting, own = waiting_tokens(x, e, w, r, request, now_s), to_compute(x, e, w, r, request, now_s)
    return float(first_token_now_s(x.prefill, (r, request.model), waiting, own))


def prompt_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    if request.prompt_tokens <= 0:
        return 0.0
    return float(prompt_now_s(x.prefill, (r, request.model), to_compute(x, e, w, r, request, now_s)))


def slowdown_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    if request.prompt_tokens <= 0:
        return 0.0
    own_s = prompt_s(x, e, w, r, request, now_s)
    return float(slowdown_now_s(x.decode, (r, request.model), own_s, output_tokens(x, r, request)))


def work_behind_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    """See `FleetView`; needs no look at other models where none of their requests is there."""
    if x.queue.balancers[r] <= 1 and x.queue.in_flight[r] == x.queue.known_requests[r, request.model]:
        return 0.0
    return float(work_behind_now_s(x.queue, x.service, (r, request.model), request.rows, _forming(x, r, now_s)))


def _forming(x: FleetState, r: int, now_s: float) -> float:
    return float(forming_now(x.queue, r, now_s)) if x.queue.balancers[r] > 1 else 1.0


def service_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(alone_s(x.service, (r, request.model), request.rows))


def latency_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(latency_now_s(x.latency, r, now_s, x.decision.settings[e, LATENCY_DECAY_S]))


def error_rate(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    """See `FleetView`; needs no arithmetic where there were no errors."""
    if x.latency.errors[r] == 0:
        return 0.0
    return float(error_rate_now(x.latency, r, now_s, x.decision.settings[e, ERROR_DECAY_S]))


def token_limits(x: FleetState, e: int) -> TokenLimits:
    settings = x.decision.settings
    return TokenLimits(settings[e, CAPACITY], settings[e, REFILL_PER_S], settings[e, TARGET_PENDING])


def tokens(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(level_now(x.tokens, r, token_limits(x, e), now_s))


def draw(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(hash_draw(x.decision.name_hash[e, w], np.uint64(request.mixed_key)))


def sequence_bid(x: FleetState, e: int, w: int, mixed_key: int) -> float:
    """What a worker bids for the sequence of a key, mixed, as `consistent_hash` has it: the least bid gets it."""
    draw = hash_draw(x.decision.name_hash[e, w], np.uint64(mixed_key))
    return float(rendezvous_cost(draw, x.decision.weight[e, w]))


def cached(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    if not is_noted(x, e, request):
        return 0.0
    if x.queue.balancers[r] > 1 and is_home(x, e, w, r, request, now_s):
        return 1.0
    f = r // x.decision.mask.shape[1]
    return float(
        warm(x.caches, f, key_and_model(request), x.decision.name_hash[e, w], r, x.decision.settings[e, KEY_MEMORY])
    )


def is_noted(x: FleetState, e: int, request: RequestFeatures) -> bool:
    """Whether anybody is to know where the request's key is warm."""
    return bool(request.keyed != 0 and x.decision.settings[e, KEY_MEMORY] > 0)


def fill_cached(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float, out: FloatArray) -> None:
    for w in range(len(out)):
        out[w] = cached(x, e, w, first + w, request, now_s)


def fill_work_behind(
    x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float, out: FloatArray
) -> None:
    for w in range(len(out)):
        out[w] = work_behind_s(x, e, w, first + w, request, now_s)


def key_and_model(request: RequestFeatures) -> Any:
    """Of a request with a key, what caches know it by: models have their own. The key alone tells its place."""
    return np.uint64(request.mixed_key) ^ (np.uint64(request.model) << _ABOVE)


def is_home(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> bool:
    """Whether the worker has the least bid for the key: the one that balancers agree on which know nothing of it."""
    bid = bid_of(x, e, w, r, request, now_s)
    # The chance of that, by this bid alone.
    if math.exp(-bid) < _HARDLY:
        return False
    workers, v = x.decision.mask.shape[1], 0
    while v < workers and bid_of(x, e, v, r - w + v, request, now_s) >= bid:
        v += 1
    return bool(v == workers)


def bid_of(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    """What a worker bids for the key, so that each is home to as many as it has of the fleet's speed."""
    part = x.caches.part[r, request.model]
    return -math.log(1.0 - draw(x, e, w, r, request, now_s)) / part if part > 0 else np.inf


def saving_s(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    if request.keyed == 0:
        return 0.0
    return float(saving_now_s(x.caches, x.service, (r, request.model), request.rows, x.queue.balancers[r]))


def matched_tokens(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(x.decision.matched[e, w]) if request.prompt_tokens > 0 else 0.0


def match(x: FleetState, e: int, first: int, model: int) -> None:
    """Look up once what each worker has of a prompt that lies before a decision."""
    d = x.decision
    f = first // d.mask.shape[1]
    for w in range(d.mask.shape[1]):
        prompt = d.checkpoint[e], d.checkpoint_tokens[e]
        d.matched[e, w] = matched(x.prefixes, f, first + w, model, d.name_hash[e, w], *prompt)


def identity(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(hash_draw(x.decision.name_hash[e, w], x.decision.model_hash[e, request.model]))


def kind_identity(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> float:
    return float(hash_draw(x.decision.kind_hash[e, w], x.decision.model_hash[e, request.model]))


OF_WORKER: dict[str, Callable[[FleetState, int, int, int, RequestFeatures, float], float]] = {
    "weight": lambda x, e, w, r, request, now_s: float(x.decision.weight[e, w]),
    "in_flight": lambda x, e, w, r, request, now_s: float(x.queue.in_flight[r]),
    "reported_pending": lambda x, e, w, r, request, now_s: float(x.queue.reported_pending[r]),
    "pending": pending,
    "backlog_s": backlog_s,
    "completion_s": completion_s,
    "service_s": service_s,
    "latency_s": latency_s,
    "error_rate": error_rate,
    "tokens": tokens,
    "report_age_s": lambda x, e, w, r, request, now_s: float(now_s - x.decision.reported_s[r]),
    "cached": cached,
    "saving_s": saving_s,
    "pending_other_models": pending_other_models,
    "work_behind_s": work_behind_s,
    "matched_tokens": matched_tokens,
    "waiting_tokens": waiting_tokens,
    "cached_tokens": lambda x, e, w, r, request, now_s: float(cached_now(x.prefixes, (r, request.model))),
    "held_tokens": lambda x, e, w, r, request, now_s: float(x.prefixes.held_tokens[r, request.model]),
    "memory_tokens": lambda x, e, w, r, request, now_s: float(x.prefixes.memory_tokens[r, request.model]),
    "first_token_s": first_token_s,
    "prompt_s": prompt_s,
    "slowdown_s": slowdown_s,
    "identity": identity,
    "kind_identity": kind_identity,
    DRAW: draw,
    ONE: lambda x, e, w, r, request, now_s: 1.0,
}

OF_REQUEST: dict[str, Callable[[RequestFeatures], float]] = {
    "rows": lambda request: request.rows,
    "deadline_s": lambda request: request.deadline_s,
    "priority": lambda request: request.priority,
    "keyed": lambda request: request.keyed,
    "prompt_tokens": lambda request: request.prompt_tokens,
}
