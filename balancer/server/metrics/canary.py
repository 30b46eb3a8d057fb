"""Metrics of changes that are watched: guards, rollout, shadow, and versions that share a model's requests."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.split import Splits
from balancer.server.metrics.scraped import counter, gauge

_SHADOW_COUNTERS = {
    "decisions": "Decisions that the shadow was asked about",
    "answers": "Decisions that it had a valid answer to",
    "agreements": "Answers with the same most likely worker as the serving policy's",
    "distance": "Sum over the answers of the total variation distance to the serving policy's: 0 same, 1 disjoint",
    "failures": "Exceptions and invalid answers of the shadow",
    "seconds": "Sum over the decisions of the time that the shadow took",
}


def policy_metrics(router: AnyRouter) -> Iterator[Metric]:
    """What guards, shadow and rollout do; a family is without samples where nothing of the kind is configured."""
    selector = router.selector
    guards = {} if selector is None else selector.guards()
    fallen = {policy: guard.breach is not None for policy, guard in guards.items()}
    yield gauge("balancer_guard_fallen_back", "1 while a baseline decides in the policy's stead", fallen, "policy")
    share = {}
    if selector is not None and selector.rollout is not None and selector.plan.new is not None:
        share[selector.plan.new.name] = selector.rollout.share
    yield gauge("balancer_rollout_share", "Share of the requests that the new policy decides", share, "policy")
    shadow = None if selector is None else selector.shadow
    for name, says in _SHADOW_COUNTERS.items():
        counted = {} if shadow is None else {shadow.policy.name: getattr(shadow, name)}
        yield counter(f"balancer_shadow_{name}", says, counted, "policy")


def split_metrics(splits: Splits) -> Iterator[Metric]:
    arms = {
        (model, version): split.arms[new]
        for model, split in splits.of.items()
        for new, version in ((False, split.settings.old), (True, split.settings.new))
    }
    requests, errors = ({of: getattr(arm, what) for of, arm in arms.items()} for what in ("requests", "errors"))
    yield counter("balancer_split_requests", "Requests that a split version got", requests, "model", "version")
    yield counter("balancer_split_errors", "Those of them that failed", errors, "model", "version")
    returned = {model: bool(split.returned) for model, split in splits.of.items()}
    says = "1: the new version did worse, and gets no requests"
    yield gauge("balancer_split_returned", says, returned, "model")
    says = "Requests of split models that name no version, and into which none could be written"
    yield counter("balancer_split_left", says, splits.left, "model", "reason")
