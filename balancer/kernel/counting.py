"""What balancers count and learn: picks, outcomes, and service times that fade. By rows of workers, see `state.py`."""

import math

from balancer.kernel.estimators.caches import learn as learn_savings
from balancer.kernel.estimators.caches import note, take_back
from balancer.kernel.estimators.caches import served as served_with_key
from balancer.kernel.estimators.generation import (
    DEFAULT_FIRST_S,
    DEFAULT_TOKEN_S,
    PRIOR_ANSWERS,
    fade_lengths,
    learn_length,
)
from balancer.kernel.estimators.latency import observe
from balancer.kernel.estimators.prefixes import take_peer_prompt, take_prompt, waiting_now
from balancer.kernel.estimators.queue import ended, recount_worker, sent
from balancer.kernel.estimators.service import fade as forget_some
from balancer.kernel.estimators.service import observe as observe_time
from balancer.kernel.estimators.tokens import advance, take
from balancer.kernel.state import (
    DEFAULT_SERVICE_S,
    ERROR_DECAY_S,
    KEY_MEMORY,
    LATENCY_DECAY_S,
    SERVICE_MEMORY,
    FleetState,
    RequestFeatures,
)
from balancer.kernel.worker_columns import is_noted, key_and_model, pending, token_limits


def refill(x: FleetState, e: int, r: int, now_s: float) -> None:
    advance(x.tokens, r, x.queue.in_flight[r] + x.queue.peer_in_flight[r], token_limits(x, e), now_s)


def count_in(x: FleetState, e: int, r: int, model: int, rows: float, now_s: float) -> None:
    """Count a request in that a worker is sent, by this balancer or a peer."""
    sent(x.queue, x.service, r, model, rows, now_s)
    refill(x, e, r, now_s)
    take(x.tokens, r)


def count_prompt_in(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> None:
    """Count the prompt in of a request that goes to worker `w`, in row `r`; writes what to learn of it by:
    `decision.to_compute`, `ahead` and `beside`."""
    d, f, m = x.decision, r // x.decision.mask.shape[1], request.model
    d.to_compute[e] = d.ahead[e] = d.beside[e] = 0.0
    if request.prompt_tokens > 0:
        name_hash, tokens, balancers = d.name_hash[e, w], request.prompt_tokens, x.queue.balancers[r]
        prompt = tokens, d.matched[e, w], d.checkpoint[e], d.checkpoint_tokens[e]
        d.to_compute[e] = take_prompt(x.prefixes, f, r, m, name_hash, *prompt, balancers, now_s)
        d.ahead[e] = float(waiting_now(x.prefixes, r, balancers))
        d.beside[e] = pending(x, e, w, r, request, now_s)


def count_peer_prompt(x: FleetState, e: int, w: int, r: int, m: int, tokens: float, now_s: float) -> None:
    """Worker `w`, in row `r`, tells of a prompt that another balancer sent there; it begins as `decision.checkpoint`
    says."""
    d, f = x.decision, r // x.decision.mask.shape[1]
    beginning = d.checkpoint[e], d.checkpoint_tokens[e]
    take_peer_prompt(x.prefixes, f, r, m, d.name_hash[e, w], tokens, *beginning, now_s)


def learn_first_token(x: FleetState, e: int, r: int, m: int, ahead: float, seconds: float) -> None:
    """The first token came so long after a prompt was sent; `ahead`: of `decision` then."""
    observe_time(x.prefill, r, m, ahead, 1.0, seconds, x.decision.settings[e, SERVICE_MEMORY], False)


def learn_tokens(x: FleetState, e: int, r: int, m: int, beside: float, seconds: float, tokens: float) -> None:
    """An answer of so many tokens ended, so long after the first of them, or 0 where that was not seen; `beside`: of
    `decision` at its pick."""
    learn_length(x.lengths, r, m, tokens)
    if seconds > 0 and tokens > 1:
        # What is beside it now has come meanwhile; it is not counted out yet.
        mean, each_s = 0.5 * (beside + x.queue.in_flight[r]), seconds / (tokens - 1)
        observe_time(x.decode, r, m, mean, 1.0, each_s, x.decision.settings[e, SERVICE_MEMORY], False)


def remember(x: FleetState, e: int, w: int, r: int, request: RequestFeatures, now_s: float) -> None:
    """Note that a request of ours goes to worker `w`, in row `r`, where it has a key."""
    if not is_noted(x, e, request):
        return
    f, memory = r // x.decision.mask.shape[1], x.decision.settings[e, KEY_MEMORY]
    note(x.caches, f, key_and_model(request), x.decision.name_hash[e, w], r, memory, now_s)


def remember_outcome(
    x: FleetState, e: int, first: int, picked: int, served: int, request: RequestFeatures, ok: bool, now_s: float
) -> None:
    """A request of ours that went to worker `picked` ended, at worker `served`; where it has a key. -1: nobody.

    `first` is the row of the first worker.
    """
    if not is_noted(x, e, request):
        return
    f, key, names = first // x.decision.mask.shape[1], key_and_model(request), x.decision.name_hash
    if picked >= 0 and (served != picked or not ok):
        take_back(x.caches, f, key, names[e, picked])
    if served >= 0 and ok:
        if served != picked:
            note(x.caches, f, key, names[e, served], first + served, x.decision.settings[e, KEY_MEMORY], now_s)
        served_with_key(x.caches, f, key, names[e, served], first + served, request.model, request.rows)


def count_peer_out(x: FleetState, e: int, r: int, model: int, rows: float, now_s: float) -> None:
    """Count a peer's request out."""
    ended(x.queue, x.service, r, model, rows, now_s)
    refill(x, e, r, now_s)


def count_out(x: FleetState, e: int, r: int, model: int, rows: float, now_s: float) -> None:
    count_peer_out(x, e, r, model, rows, now_s)
    x.queue.done_requests[r, model] += 1
    x.queue.done_rows[r, model] += rows


def learn(x: FleetState, e: int, r: int, latency_s: float, ok: bool, now_s: float) -> None:
    """Learn latency and error rate from one outcome; a latency that is not a number is none."""
    settings = x.decision.settings
    observe(x.latency, r, latency_s, ok, now_s, settings[e, LATENCY_DECAY_S], settings[e, ERROR_DECAY_S])


def learn_of_pick(x: FleetState, e: int, picked: int, served: int, latency_s: float, ok: bool, now_s: float) -> None:
    """Learn from the outcome of a request that went to worker row `picked`; `served`: who answered. -1: nobody."""
    if served != picked and picked >= 0:
        # Retried elsewhere, or never served: the worker picked did not take it.
        learn(x, e, picked, math.nan, False, now_s)
    if served >= 0:
        learn(x, e, served, latency_s, ok, now_s)


def finish(
    x: FleetState, e: int, picked: int, model: int, rows: float, served: int, latency_s: float, ok: bool, now_s: float
) -> None:
    """Count a request of ours out, and learn from its outcome; `picked` below 0: it was not counted in."""
    if picked >= 0:
        count_out(x, e, picked, model, rows, now_s)
    learn_of_pick(x, e, picked, served, latency_s, ok, now_s)


def fade(x: FleetState, e: int, first: int, workers: int, share: float) -> None:
    """Let service times fade, see `service.fade`, and count the work that waits anew."""
    kind, default_s = x.decision.kind, x.decision.settings[e, DEFAULT_SERVICE_S]
    forget_some(x.service, kind, first, workers, share, default_s)
    for r in range(first, first + workers):
        recount_worker(x.queue, x.service, r)
    forget_some(x.prefill, kind, first, workers, share, DEFAULT_FIRST_S, PRIOR_ANSWERS)
    forget_some(x.decode, kind, first, workers, share, DEFAULT_TOKEN_S, PRIOR_ANSWERS)
    fade_lengths(x.lengths, first, workers, share)
    learn_savings(x.caches, x.service, first, workers, share)
