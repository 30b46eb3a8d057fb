"""Makes the document: only on demand, and at most about once a second, however many ask."""

import importlib.metadata
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from balancer.config.watch import ConfigState
from balancer.kernel.view import LiveView
from balancer.native.router import SharedRouter
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.split import Splits
from balancer.scheduler.fleet import ANY_MODEL, Fleet
from balancer.scheduler.snapshot import reasons
from balancer.scheduler.worker import Worker as Known
from balancer.server.events import EventLog
from balancer.server.metrics import Metrics
from balancer.server.metrics.metrics import memory_share
from balancer.server.page.document import (
    DOCUMENT,
    MOST_MODELS,
    MOST_PARTS,
    MOST_WORKERS,
    AllTraffic,
    Column,
    ConfigShown,
    PageDocument,
    PageWorker,
    Process,
    TrafficRow,
)
from balancer.server.page.explain import canary, explain, who_decides
from balancer.server.tally import Recent, RecentOutcomes, picked, summary
from balancer.server.workers.drains import Drains
from policies.base import Request
from policies.columns import DECLARED

FRESH_S = 0.9
"""For so long a document is shown again; a little less than the second after which a reader wants the next."""
_MOST_KEPT = 16
_MOST_INPUTS = 20
_MOST_PROBLEMS = 20
_BY_HAND = "drained by hand"
_NOT_WELL = ("silent", "no report", "not ready", _BY_HAND, "draining")

TITLES = {
    "weight": "relative capacity",
    "in_flight": "in flight",
    "reported_pending": "queue as reported",
    "pending": "queue",
    "backlog_s": "wait",
    "completion_s": "expected answer",
    "service_s": "service alone",
    "latency_s": "recent latency",
    "error_rate": "errors",
    "tokens": "tokens",
    "report_age_s": "report age",
    "cached": "cache is warm",
    "saving_s": "warm cache saves",
    "pending_other_models": "queue of other models",
    "work_behind_s": "wait for other models",
    "matched_tokens": "prompt cached",
    "waiting_tokens": "prompts waiting",
    "cached_tokens": "tokens cached",
    "held_tokens": "memory held",
    "memory_tokens": "memory",
    "first_token_s": "first token",
    "prompt_s": "prompt alone",
    "slowdown_s": "slows others by",
}


@dataclass(frozen=True)
class AdminSources:
    router: AnyRouter
    metrics: Metrics
    clock: Callable[[], float]
    readiness: Callable[[], str]
    """Why picks cannot be made; empty: they can."""
    recent: Callable[[], Recent]
    config: ConfigState
    events: EventLog = field(default_factory=EventLog)
    process: int = 0
    drains: Drains | None = None
    """Who is drained by hand; None: nobody can be."""
    splits: Splits = field(default_factory=Splits)
    held: Callable[[str, float], dict[str, Any]] = lambda model, now_s: {}
    read_prompt: Callable[[Mapping[str, str], bytes], Request] = lambda headers, body: Request(model="")
    """A request of OpenAI's API, by its headers and its body; OutOfBoundsError where it is none."""


class PageData:
    def __init__(self, sources: AdminSources) -> None:
        self._from = sources
        self._begun_s = sources.clock()
        self._version = importlib.metadata.version("balancer")
        self._kept: dict[Request | None, tuple[float, bytes]] = {}
        self.made = 0

    def latest(self, question: Request | None) -> bytes:
        """The document as JSON, about a request for a model; None: for the one with the most traffic."""
        now_s = self._from.clock()
        kept = self._kept.pop(question, None)
        if kept is None or now_s - kept[0] >= FRESH_S:
            kept = now_s, DOCUMENT.dump_json(self.document(question))
        self._kept[question] = kept
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]

    def document(self, question: Request | None) -> PageDocument:
        self.made += 1
        sources, now_s = self._from, self._from.clock()
        router = sources.router
        span_s, parts = sources.recent().parts(now_s)
        models = _models(router.fleet, parts)
        if question is None and (models or not router.settings.reports_required):
            question = Request(models[0] if models else ANY_MODEL)
        why = {} if question is None else explain(router, question, now_s, sources.splits)
        listed = _workers(router, question or Request(""), why, (span_s, parts), now_s)
        workers = [replace(each, state=_BY_HAND) if each.name in (sources.drains or ()) else each for each in listed]
        shown = sorted(workers, key=_urgency)[:MOST_WORKERS] if len(workers) > MOST_WORKERS else workers
        return PageDocument(
            at_s=time.time(),
            process=self._process(now_s),
            recent=_all_traffic(span_s, parts),
            states=dict(Counter(worker.state for worker in workers)),
            workers=shown,
            workers_left_out=len(workers) - len(shown),
            models=models[:MOST_MODELS],
            models_left_out=max(len(models) - MOST_MODELS, 0),
            why=_bounded(why),
            reads=[
                Column(name, TITLES[name], DECLARED[name].unit, DECLARED[name].says) for name in why.get("reads", ())
            ],
            config=_config(sources.config),
            refusals=sources.metrics.refusals.totals(),
            fallbacks=sources.metrics.fallbacks.totals(),
            refused_inputs=dict(Counter(sources.metrics.refused_inputs.totals()).most_common(_MOST_INPUTS)),
            events=sources.events.newest_first(),
            canary=canary(router, now_s),
        )

    def _process(self, now_s: float) -> Process:
        sources, router = self._from, self._from.router
        native, frontend = isinstance(router, SharedRouter), sources.config.started.envoy.frontend
        learned = sources.config.learned
        return Process(
            number=sources.process,
            processes=sources.config.started.processes,
            version=self._version,
            up_s=now_s - self._begun_s,
            frontend="native" if native else "proxy" if frontend == "proxy" else "pick",
            not_deciding_because=router.not_deciding_because if isinstance(router, SharedRouter) else "",
            not_ready=sources.readiness(),
            policy=router.policy.name,
            decides=who_decides(router, now_s),
            learning="" if learned is None else learned.in_words(),
            learning_since_s=0.0 if learned is None else learned.since_s,
        )


def _models(fleet: Fleet, parts: Sequence[RecentOutcomes]) -> list[str]:
    """Their names: those with traffic first, most first."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts[part.of.model] += len(part.latency_s)
    names = (name for name in fleet.models if name != ANY_MODEL)
    return sorted(names, key=lambda name: (-counts[name], name))


def _workers(
    router: AnyRouter,
    question: Request,
    why: Mapping[str, Any],
    traffic: tuple[float, Sequence[RecentOutcomes]],
    now_s: float,
) -> list[PageWorker]:
    fleet = router.fleet
    view = LiveView(fleet, np.ones(len(fleet.workers), bool), router.fleet.column(question.model), question, now_s)
    names = ("pending", "in_flight", "backlog_s", "error_rate", "report_age_s", "waiting_tokens")
    columns = {name: getattr(view, name).tolist() for name in names}
    objections = (
        {each["worker"]: each["why_not"] for each in why["workers"]} if why else reasons(router, question, now_s)
    )
    rows_per_s = _rows_per_s(fleet, question.model)
    memory = memory_share(fleet).tolist()
    span_s, parts = traffic
    by_worker: dict[str, list[RecentOutcomes]] = {}
    for part in parts:
        by_worker.setdefault(part.of.worker, []).append(part)
    found = []
    for row, worker in enumerate(fleet.workers):
        served = summary(span_s, by_worker.get(worker.name, ()))
        age_s = columns["report_age_s"][row]
        found.append(
            PageWorker(
                name=worker.name,
                state=_state(worker, age_s, router),
                why_not=objections[worker.name],
                device=worker.device,
                answers_per_s=served.rate_per_s,
                errors=served.errors,
                p50_s=served.p50_s,
                p99_s=served.p99_s,
                rows_per_s=rows_per_s[row],
                memory_share=memory[row],
                utilisation=worker.utilisation,
                **{name: values[row] for name, values in columns.items()},
            )
        )
    return found


def _state(worker: Known, report_age_s: float, router: AnyRouter) -> str:
    if worker.draining or worker.stopping:
        return "draining"
    if worker.number < 0:
        return "no report" if router.settings.reports_required else "listed"
    if not worker.ready:
        return "not ready"
    return "silent" if report_age_s > router.settings.stale_after_s else "ready"


def _urgency(worker: PageWorker) -> int:
    return _NOT_WELL.index(worker.state) if worker.state in _NOT_WELL else len(_NOT_WELL)


def _rows_per_s(fleet: Fleet, model: str) -> list[float]:
    """What one instance of each worker serves at full batches, as learned; NaN: nothing is."""
    column = fleet.models.get(model)
    if column is None or model == ANY_MODEL:
        return [math.nan] * len(fleet.workers)
    service = fleet.service
    most = service.max_batch_rows[:, column]
    batch_s = service.fixed_s[:, column] + service.per_row_s[:, column] * most
    rate = np.divide(most, batch_s, out=np.full(len(batch_s), np.nan), where=batch_s > 0)
    return [float(each) for each in np.where(service.weight[:, column] > 0, rate, np.nan)]


def _all_traffic(span_s: float, parts: Sequence[RecentOutcomes]) -> AllTraffic:
    groups: dict[tuple[str, str], list[RecentOutcomes]] = {}
    for part in parts:
        groups.setdefault((part.of.model, part.of.policy), []).append(part)
    rows = [
        TrafficRow(**asdict(summary(span_s, group)), model=model, policy=policy)
        for (model, policy), group in groups.items()
    ]
    rows.sort(key=lambda row: (-row.rate_per_s, row.model, row.policy))
    return AllTraffic(
        **asdict(summary(span_s, parts)),
        **picked(parts),
        window_s=span_s,
        parts=rows[:MOST_PARTS],
        parts_left_out=max(len(rows) - MOST_PARTS, 0),
    )


def _bounded(why: dict[str, Any]) -> dict[str, Any]:
    """With as many workers as are shown: the most likely where there are more."""
    if not why:
        return why
    likely, left_out = why["workers"], max(len(why["workers"]) - MOST_WORKERS, 0)
    if left_out:
        likely = sorted(likely, key=lambda each: (-each["probability"], not each["eligible"]))
    return why | {"workers": likely[:MOST_WORKERS], "workers_left_out": left_out}


def _config(state: ConfigState) -> ConfigShown:
    error = state.last_error
    return ConfigShown(
        source=state.source,
        hash=state.hash,
        refused=state.refused,
        problems=[] if error is None else [str(problem) for problem in error.problems[:_MOST_PROBLEMS]],
        refused_at_s=state.last_error_at_s,
        waiting=state.waiting_changes,
        history=list(reversed(state.history)),
    )
