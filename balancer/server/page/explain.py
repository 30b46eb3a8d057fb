"""`/explain`: what the policy would do with a request now, and why each worker left out is so."""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.extproc.inference_bytes import pinned_version
from balancer.kernel.checked_answer import answer
from balancer.kernel.view import LiveView
from balancer.scheduler.after_decision import Answered
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.split import Split, Splits
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.fleet import ANY_MODEL, Fleet
from balancer.scheduler.snapshot import reasons as why_not
from policies.base import FloatArray, Request
from policies.columns import QUANTITIES
from policies.hashing import key_of

logger = logging.getLogger(__name__)

_PARAMETERS = {"model", "version", "rows", "key", "priority", "deadline_ms"}
_MOST_MOVED = 5
"""Inputs shown of those that moved a pick: the others matter less than any of these."""


def read_question(query: Mapping[str, str]) -> Request:
    """The request that `/explain` is asked about.

    Raises:
        OutOfBoundsError: naming the parameter, its value and what is allowed; `field` is a name of ours, never one of
            the query's.
    """
    if unknown := sorted(set(query) - _PARAMETERS):
        raise OutOfBoundsError("parameter", unknown[0], f"must be one of {', '.join(sorted(_PARAMETERS))}")
    model = bounds.text("model", query.get("model", ""))
    if not model:
        raise OutOfBoundsError("model", model, "must be given, as /explain?model=NAME; see /workers for the names")
    key = bounds.text("key", query.get("key", ""))
    return Request(
        model=model,
        version=bounds.text("version", query.get("version", "")),
        rows=_whole(query, "rows", 1, 1, bounds.MAX_ROWS),
        key=key_of(key) if key else None,
        priority=_whole(query, "priority", 0, 0, bounds.MAX_PRIORITY),
        deadline_s=_number(query, "deadline_ms", math.inf, 0.0, bounds.MAX_DEADLINE_S * 1000) / 1000,
    )


def _number(query: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    if name not in query:
        return default
    # A number that is longer is out of bounds anyway; reading it takes long.
    written = bounds.text(name, query[name])
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise OutOfBoundsError(name, written, f"is a number from {least:.12g} to {most:.12g}")
    return bounds.number(name, value, least, most)


def _whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    value = _number(query, name, default, least, most)
    if value != int(value):
        raise OutOfBoundsError(name, value, f"is a whole number from {least} to {most}")
    return int(value)


def explain(router: AnyRouter, request: Request, now_s: float, splits: Splits | None = None) -> dict[str, Any]:
    """The probabilities that would be given now, by whom, what that sees, and why each ineligible worker is so.

    Where two versions share the model's requests (`splits`), of the version that this one gets.
    """
    fleet = router.fleet
    request, split = _of_a_version(fleet, request, splits)
    page: dict[str, Any] = {"model": request.model, "version": request.version, "policy": router.policy.name} | split
    if request.prompt_tokens:
        page["prompt_tokens"] = request.prompt_tokens
        page |= {"max_tokens": request.max_tokens} if request.max_tokens else {}
    page |= canary(router, now_s)
    if _nobody_has(fleet, request):
        # The router keeps what it finds for each name that it is asked about; names that nobody has it need not keep.
        reasons = {w.name: list(fleet.objections(w, request.model, request.version)) for w in fleet.workers}
        version = f" version {request.version!r}" if request.version else ""
        why = f"no worker has model {request.model!r}{version}"
        return page | {"refused": why, "workers": _without_policy(router, request, reasons, now_s)}
    reasons = why_not(router, request, now_s)
    try:
        answered = router.answer_now(request, now_s)
    except RoutingError as error:
        return page | {"refused": str(error), "workers": _without_policy(router, request, reasons, now_s)}
    view, probabilities = answered.view, answered.probabilities
    moved, shadow = _moved(answered), _shadow(router, answered)
    for row, name in enumerate(fleet.names):
        reasons[name] = reasons[name] or ([] if view.eligible[row] else [_why_spared(fleet, row, now_s)])
    return page | {
        "answered_by": answered.policy.name,
        "answered_as": answered.role,
        "reads": columns_read(answered),
        **({"moved_by_is_in": answered.policy.score_unit} if moved else {}),
        "workers": _workers(fleet, view, probabilities, reasons, shadow, moved),
    }


def _workers(
    fleet: Fleet,
    view: LiveView,
    probabilities: FloatArray,
    reasons: Mapping[str, list[str]],
    shadow: FloatArray | None = None,
    moved: Mapping[int, dict[str, float]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    columns = {name: getattr(view, name).tolist() for name in QUANTITIES}
    return [
        {
            "worker": name,
            "probability": float(probabilities[row]),
            **({} if shadow is None else {"shadow_probability": float(shadow[row])}),
            "eligible": bool(view.eligible[row]),
            "why_not": reasons[name],
            **({"moved_by": moved[row]} if row in moved else {}),
            "sees": {column: values[row] for column, values in columns.items()},
        }
        for row, name in enumerate(fleet.names)
    ]


def _without_policy(
    router: AnyRouter, request: Request, reasons: Mapping[str, list[str]], now_s: float
) -> list[dict[str, Any]]:
    fleet, none = router.fleet, np.zeros(len(router.fleet.workers), bool)
    column = fleet.models.get(request.model, fleet.models[ANY_MODEL])
    view = LiveView(fleet, none, column, request, now_s)
    return _workers(fleet, view, none.astype(float), reasons)


def _of_a_version(fleet: Fleet, request: Request, splits: Splits | None) -> tuple[Request, dict[str, Any]]:
    """The same with the version that it gets, where that is certain, and what to say of the split."""
    if request.version:
        return request, {}
    split = None if splits is None else splits.of.get(request.model)
    if split is None:
        return replace(request, version=pinned_version(fleet, request.model)), {}
    settings, version = split.settings, ""
    if request.key is not None or split.share in (0, 1):
        # Drawn by a copy: a question takes no part in the split.
        copy = Split(settings, split.seed, returned=split.returned)
        version = copy.draw(None if request.key is None else int(request.key)).version
    shares = {"old": settings.old, "new": settings.new, "share": split.share, "returned": split.returned}
    gets = version or "drawn for each request: ask with its key, or with a version"
    return replace(request, version=version), {"split": shares | {"gets": gets}}


def _why_spared(fleet: Fleet, row: int, now_s: float) -> str:
    """Why a worker that may serve is left out of this request."""
    if fleet.decision.tier[row]:
        return f"in zone {fleet.workers[row].zone}, and a nearer worker is expected to be done soon enough"
    if now_s - fleet.decision.since_s[row] < fleet.settings.slow_start_s:
        return "new here: it gets part of the requests until its service times are known (discovery.slow_start_s)"
    return "one of very many: this request looks at others (requests.sampled_workers)"


class _Noting:
    def __init__(self, view: LiveView) -> None:
        self._view = view
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._view, name)


def columns_read(answered: Answered) -> list[str]:
    """The columns that the policy asked for this request reads; empty where its Python cannot be run here."""
    noting = _Noting(answered.view)
    try:
        answered.policy.probabilities(answered.request, noting)
    except Exception:  # a third party's policy may raise anything; its failure is told elsewhere
        logger.debug("policy %s cannot say what it reads", answered.policy.name, exc_info=True)
    return [name for name in QUANTITIES if name in noting.read]


def _nobody_has(fleet: Fleet, request: Request) -> bool:
    """Whether no worker has the model, or none the version, as far as workers tell."""
    if not fleet.settings.reports_required:
        return False
    loaded = [worker.versions.get(request.model, frozenset()) for worker in fleet.workers]
    return not any(request.version in versions if request.version else versions for versions in loaded)


def canary(router: AnyRouter, now_s: float) -> dict[str, Any]:
    if router.selector is not None:
        return router.selector.explain(now_s)
    return {"decides": router.policy.name, "guards": {}, "shadow": None, "rollout": None}


def who_decides(router: AnyRouter, now_s: float) -> str:
    """In a line: which policy decides now, why that is not the one of the config, and who has a part in it."""
    found, configured = canary(router, now_s), router.policy.name
    decides, rollout = found["decides"], found["rollout"]
    role = "in_force" if router.selector is None else router.selector.main()[1]
    words = [decides]
    if role == "baseline":
        watched = rollout["to"] if rollout and rollout["state"] in ("watched", "finished") else configured
        words = [f"{decides} (the guard's baseline, while {watched} is out of service)"]
    elif role == "rollout":
        words = [f"{decides} (rolled out, in place of {configured})"]
    if rollout and rollout["state"] == "running":
        words.append(f"{rollout['to']} for {rollout['share']:.0%} of the requests (rollout)")
    if found["shadow"]:
        words.append(f"{found['shadow']['policy']} only looks on (shadow)")
    return ", ".join(words)


def _shadow(router: AnyRouter, answered: Answered) -> FloatArray | None:
    if router.selector is None or router.selector.shadow is None:
        return None
    return answer(router.selector.shadow.policy, answered.request, answered.view)[0]


def _moved(answered: Answered) -> dict[int, dict[str, float]]:
    """By row of each eligible worker, what inputs add to its score beyond the mean of them, the few largest first.

    Empty where the policy does not say.
    """
    eligible = answered.view.eligible
    try:
        contributions = answered.policy.contributions(answered.request, answered.view)
        beyond = {name: values - values[eligible].mean() for name, values in contributions.items()}
    except Exception:  # a third party's policy may raise anything; the rest of the page is true without
        logger.exception("policy %s cannot say what moved its pick", answered.policy.name)
        return {}
    rows = [int(row) for row in eligible.nonzero()[0]] if beyond else []
    return {row: dict(sorted(_rounded(beyond, row), key=lambda item: -abs(item[1]))[:_MOST_MOVED]) for row in rows}


def _rounded(beyond: Mapping[str, FloatArray], row: int) -> list[tuple[str, float]]:
    return [(name, float(f"{values[row]:.3g}")) for name, values in beyond.items()]
