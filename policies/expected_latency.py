"""Expected latency: least expected completion time of this request, softened so that balancers do not herd."""

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import WORST, option
from policies.choices import softmin_of
from policies.costs import CostPolicy, Elements, mean_of

_MOST_OF_FIRST = 0.9
"""What the whole answer gives up of its weight where the first token has all of it. Who looks at first tokens alone
puts too many answers beside each other, and each is there for longer when the next prompt comes."""


def expected_s(
    completion_s: Elements,
    backlog_s: Elements,
    pending: Elements,
    pending_other_models: Elements,
    work_behind_s: Elements,
    error_rate: Elements,
    error_penalty_s: Elements,
    delayed_share: Elements,
    delayed_share_other_models: Elements,
    work_behind_share: Elements,
) -> Elements:
    """Expected seconds, errors and others' delay counted as such; of elements."""
    # Bounded, so that what is infinite or unknown makes the cost so, and no other.
    added_s = np.maximum(np.fmin(completion_s, WORST) - np.fmin(backlog_s, WORST), 0.0)
    of_own_model = np.maximum(np.fmin(pending - pending_other_models, WORST), 0.0)
    delayed = delayed_share * of_own_model
    delayed = delayed + delayed_share_other_models * np.fmin(pending_other_models, WORST)
    work_behind_s = work_behind_share * np.fmin(np.fmax(work_behind_s, 0.0), WORST)
    return np.maximum(completion_s - work_behind_s, added_s) + delayed * added_s + error_penalty_s * error_rate


def generated_s(
    completion_s: Elements,
    first_token_s: Elements,
    prompt_s: Elements,
    slowdown_s: Elements,
    pending: Elements,
    reported_pending: Elements,
    matched_tokens: Elements,
    prompt_tokens: Elements,
    mean_matched: Elements,
    saving_factor: Elements,
    ttft_weight: Elements,
) -> Elements:
    """Expected seconds of an answer that is generated, and of its first token, weighed, others' delay counted as such,
    and what the worker's cache saves; of elements."""
    first_s = np.fmin(first_token_s, WORST) + np.fmin(reported_pending, WORST) * np.fmin(prompt_s, WORST)
    whole_s = np.fmin(completion_s, WORST) + np.fmin(pending, WORST) * np.fmin(slowdown_s, WORST)
    # `prompt_s` is of the tokens that are left to compute; those that are cached take as long each.
    matched_tokens = np.fmin(np.fmax(matched_tokens, 0.0), prompt_tokens)
    cached = matched_tokens / np.maximum(prompt_tokens - matched_tokens, 1.0)
    # What all have need nobody keep: who computes it anew drives out what is as old, and followers may come there too.
    rare = 1.0 - np.fmin(mean_matched / np.maximum(matched_tokens, 1.0), 1.0)
    whole_s = whole_s - saved_s(cached, np.where(prompt_s < WORST, prompt_s, 0.0), saving_factor * rare)
    return ttft_weight * first_s + (1.0 - _MOST_OF_FIRST * ttft_weight) * whole_s


def saved_s(cached: Elements, saving_s: Elements, saving_factor: Elements) -> Elements:
    """Seconds that a warm cache is expected to save, counted so many times; of elements."""
    return saving_factor * np.maximum(np.fmin(cached * saving_s, WORST), 0.0)


@dataclasses.dataclass(frozen=True)
class ExpectedLatency(CostPolicy):
    """Least expected seconds, by a softmin whose scale is `temperature` times the best.

    The seconds are `completion_s` less `work_behind_share` of `work_behind_s`, what errors cost, and the delay that the
    request is taken to cause to others there: what it adds to the device (`completion_s - backlog_s`), once for
    each of `delayed_share` of the pending requests of its own model, and of `delayed_share_other_models` of those
    of others. Models take turns on a device, so a long request delays many short ones of other models, which its
    own completion does not tell. Those of its own model are ahead of it, but others come before the queue is empty.
    Without a queue this is nothing.

    `completion_s` has all work there go before the request. Of other models less does, as models take turns, and on a
    device that executes several at once much less. Who leaves that out keeps models apart, and such a device half idle;
    who counts it in full sends long requests in among many short ones.

    On herding: balancers that read the same reports would all run to the same worker, if they trusted reports alone.
    What prevents it is in the estimate and not in the choice: every pick counts at once, for the others' picks too, so
    the worker just picked looks longer to the next request. The softmin therefore only needs to part near ties. A
    wider one buys nothing, even with many balancers and old reports, and costs where there are few.

    Where a worker's cache makes requests of a key cheaper, what that is expected to save counts `saving_factor` times:
    who goes elsewhere takes those that follow with it, and drives another key out there. Where keys are not seen to
    save anything, this is nothing.

    Of a model that generates, the seconds are those until the first token and until the whole answer, by `ttft_weight`,
    and what others lose: those that wait there, while this prompt is computed; all that are there, by that and by the
    tokens that each step generates more. What is cached there of the prompt saves the time to compute it, which counts
    `saving_factor` times as well: those that begin alike follow, and computed elsewhere it would drive others out. It
    counts the less the more of the workers have it: a prompt that all begin with is to be everywhere.

    A worker that fails fast looks idle; what an error costs the client in seconds keeps it from being the best.
    """

    name: ClassVar[str] = "expected_latency"
    summary: ClassVar[str] = "Least expected completion time: batch-aware, dead-reckoned, speed and queue in one."
    source: ClassVar[str] = "Selen et al. 2016, Steady-state analysis of shortest expected delay routing, QUESTA 84"

    temperature: float = option(
        0.02,
        "Relative spread: a worker this share slower is picked e times less often; 0: only the best",
        ge=0.0,
    )
    error_penalty_s: float = option(1.0, "Seconds that a failed request counts as", ge=0.0)
    delayed_share: float = option(
        0.2,
        "Share of a worker's pending requests of the same model that are taken to be delayed by what the request adds, "
        "or as many that come later; 0: none",
        ge=0.0,
    )
    delayed_share_other_models: float = option(
        0.5,
        "Share of a worker's pending requests of other models that are taken to be delayed by what the request adds",
        ge=0.0,
    )
    work_behind_share: float = option(
        0.5,
        "Share taken to go after the request, of the work of other models that would do so if models took turns on the "
        "device; 0: all goes before",
        ge=0.0,
        le=1.0,
    )
    saving_factor: float = option(
        16.0,
        "How many times the seconds count that a warm cache is expected to save, for the requests with the same key, "
        "or the same beginning, that follow to the same worker; 0: caches do not matter",
        ge=0.0,
    )

    ttft_weight: float = option(
        0.5,
        "Weight of the time to the first token of a model that generates; the rest, a tenth at least, is that of the "
        "whole answer",
        ge=0.0,
        le=1.0,
    )

    choice = softmin_of("temperature")
    facts: ClassVar = {"mean_matched": mean_of("matched_tokens")}

    @staticmethod
    def cost(
        completion_s: Elements,
        backlog_s: Elements,
        pending: Elements,
        pending_other_models: Elements,
        work_behind_s: Elements,
        error_rate: Elements,
        cached: Elements,
        saving_s: Elements,
        first_token_s: Elements,
        prompt_s: Elements,
        slowdown_s: Elements,
        reported_pending: Elements,
        matched_tokens: Elements,
        prompt_tokens: Elements,
        mean_matched: Elements,
        error_penalty_s: Elements,
        delayed_share: Elements,
        delayed_share_other_models: Elements,
        work_behind_share: Elements,
        saving_factor: Elements,
        ttft_weight: Elements,
    ) -> Elements:
        """Expected seconds, errors and others' delay counted as such, less what a warm cache saves."""
        seconds = expected_s(
            completion_s,
            backlog_s,
            pending,
            pending_other_models,
            work_behind_s,
            error_rate,
            error_penalty_s,
            delayed_share,
            delayed_share_other_models,
            work_behind_share,
        )
        generated = generated_s(
            *(completion_s, first_token_s, prompt_s, slowdown_s, pending, reported_pending),
            *(matched_tokens, prompt_tokens, mean_matched, saving_factor, ttft_weight),
        )
        generated = generated + error_penalty_s * error_rate
        return np.where(prompt_tokens > 0, generated, seconds - saved_s(cached, saving_s, saving_factor))
