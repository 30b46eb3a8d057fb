"""Makes the document: only when asked, and at most about once a second, however many ask."""

from __future__ import annotations

import importlib.metadata
import math
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from balancer.config.watch import ConfigState
from balancer.core.fleet import ANY_MODEL, Fleet
from balancer.core.router import Router
from balancer.core.shown import reasons
from balancer.core.trials.split import Splits
from balancer.core.view import LiveView
from balancer.core.worker import Worker as Known
from balancer.front.router import SharedRouter
from balancer.operate.explain import explain, steering
from balancer.operate.journal import Journal
from balancer.operate.lookout import refusals
from balancer.operate.metrics import Metrics
from balancer.operate.page.document import (
    DOCUMENT,
    MOST_MODELS,
    MOST_PARTS,
    MOST_WORKERS,
    Column,
    ConfigShown,
    Document,
    InForce,
    Process,
    Recently,
    Traffic,
    Worker,
)
from balancer.operate.recent import Part, Recent, quantiles
from policies.base import Request
from policies.columns import DECLARED

FRESH_S = 0.9
"""For so long a document is shown again; a little less than the second after which a reader wants the next."""
_MOST_KEPT = 16
"""Documents, each of another question."""
_MOST_INPUTS = 20
_MOST_PROBLEMS = 20
_BY_HAND = "drained by hand"
_TROUBLE = ("silent", "no report", "not ready", _BY_HAND, "draining")
"""States in the order in which workers are told where not all are."""


@dataclass(frozen=True)
class Sources:
    """Where what is shown comes from."""

    router: Router
    metrics: Metrics
    clock: Callable[[], float]
    readiness: Callable[[], str]
    """Why picks cannot be made; empty: they can."""
    recent: Callable[[], Recent]
    """The traffic until now."""
    config: ConfigState
    journal: Journal
    process: int
    drained: Container[str] = ()
    """Workers that are drained by hand."""
    splits: Splits | None = None
    """By which versions share a model's requests."""


class Maker:
    """Makes documents, and keeps the newest for whoever asks the same."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._begun_s = sources.clock()
        self._version = importlib.metadata.version("balancer")
        self._kept: dict[Request | None, tuple[float, bytes]] = {}
        self.made = 0
        """Documents so far."""

    def latest(self, asked: Request | None) -> bytes:
        """The document as JSON, about a request for a model; None: for the one with the most traffic."""
        now_s = self._from.clock()
        kept = self._kept.pop(asked, None)
        if kept is None or now_s - kept[0] >= FRESH_S:
            kept = now_s, DOCUMENT.dump_json(self.document(asked))
        self._kept[asked] = kept
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]

    def document(self, asked: Request | None) -> Document:
        """As `latest`, made anew."""
        self.made += 1
        sources, now_s = self._from, self._from.clock()
        router = sources.router
        span_s, parts = sources.recent().parts(now_s)
        models = _models(router.fleet, parts)
        if asked is None and (models or not router.settings.reports_required):
            asked = Request(models[0] if models else ANY_MODEL)
        why = {} if asked is None else explain(router, asked, now_s, sources.splits)
        told = _workers(router, asked or Request(""), why, (span_s, parts), now_s)
        workers = [replace(each, state=_BY_HAND) if each.name in sources.drained else each for each in told]
        shown = sorted(workers, key=_trouble)[:MOST_WORKERS] if len(workers) > MOST_WORKERS else workers
        return Document(
            at_s=time.time(),
            process=self._process(now_s),
            recent=_recently(span_s, parts),
            states=dict(Counter(worker.state for worker in workers)),
            workers=shown,
            workers_left_out=len(workers) - len(shown),
            models=models[:MOST_MODELS],
            models_left_out=max(len(models) - MOST_MODELS, 0),
            why=_bounded(why),
            reads=[Column(name, DECLARED[name].unit, DECLARED[name].says) for name in why.get("reads", ())],
            config=_config(sources.config),
            refusals=refusals(sources.metrics),
            fallbacks=_counts(sources.metrics.fallbacks),
            refused_inputs=dict(Counter(_counts(sources.metrics.refused_inputs)).most_common(_MOST_INPUTS)),
            events=sources.journal.newest_first(),
            steering=steering(router, now_s),
        )

    def _process(self, now_s: float) -> Process:
        sources, router = self._from, self._from.router
        native, frontend = isinstance(router, SharedRouter), sources.config.started.envoy.frontend
        return Process(
            number=sources.process,
            processes=sources.config.started.processes,
            version=self._version,
            up_s=now_s - self._begun_s,
            frontend="native" if native else "proxy" if frontend == "proxy" else "pick",
            asked_because=router.asked_because if isinstance(router, SharedRouter) else "",
            not_ready=sources.readiness(),
            policy=router.policy.name,
        )


def _models(fleet: Fleet, parts: Sequence[Part]) -> list[str]:
    """Their names: those with traffic first, most first."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts[part.of.model] += len(part.latency_s)
    names = (name for name in fleet.models if name != ANY_MODEL)
    return sorted(names, key=lambda name: (-counts[name], name))


def _workers(
    router: Router, asked: Request, why: Mapping[str, Any], traffic: tuple[float, Sequence[Part]], now_s: float
) -> list[Worker]:
    fleet = router.fleet
    view = LiveView(fleet, np.ones(len(fleet.workers), bool), router.column(asked.model), 1.0, now_s)
    names = ("pending", "in_flight", "backlog_s", "error_rate", "report_age_s")
    columns = {name: getattr(view, name).tolist() for name in names}
    objections = {each["worker"]: each["why_not"] for each in why["workers"]} if why else reasons(router, asked, now_s)
    rows_per_s = _rows_per_s(fleet, asked.model)
    span_s, parts = traffic
    heard: dict[str, list[Part]] = {}
    for part in parts:
        heard.setdefault(part.of.worker, []).append(part)
    found = []
    for row, worker in enumerate(fleet.workers):
        count, errors, p50_s, p99_s = _sums(heard.get(worker.name, ()))
        age_s = columns["report_age_s"][row]
        found.append(
            Worker(
                name=worker.name,
                state=_state(worker, age_s, router),
                why_not=objections[worker.name],
                device=worker.device,
                answers_per_s=count / span_s,
                errors=errors,
                p50_s=p50_s,
                p99_s=p99_s,
                rows_per_s=rows_per_s[row],
                utilisation=worker.utilisation,
                **{name: values[row] for name, values in columns.items()},
            )
        )
    return found


def _state(worker: Known, report_age_s: float, router: Router) -> str:
    if worker.draining or worker.stopping:
        return "draining"
    if worker.number < 0:
        return "no report" if router.settings.reports_required else "listed"
    if not worker.ready:
        return "not ready"
    return "silent" if report_age_s > router.settings.stale_after_s else "ready"


def _trouble(worker: Worker) -> int:
    return _TROUBLE.index(worker.state) if worker.state in _TROUBLE else len(_TROUBLE)


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


def _sums(parts: Sequence[Part]) -> tuple[int, int, float, float]:
    """Count, errors, p50 and p99 of them all."""
    count = sum(len(part.latency_s) for part in parts)
    errors = sum(len(part.latency_s) for part in parts if not part.ok)
    latencies = [part.latency_s for part in parts if part.ok]
    return count, errors, *quantiles(np.concatenate(latencies) if latencies else np.zeros(0))


def _recently(span_s: float, parts: Sequence[Part]) -> Recently:
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.of.model, part.of.policy), []).append(part)
    rows = [
        Traffic(model, policy, count / span_s, errors, p50_s, p99_s)
        for (model, policy), group in groups.items()
        for count, errors, p50_s, p99_s in [_sums(group)]
    ]
    rows.sort(key=lambda row: (-row.rate_per_s, row.model, row.policy))
    count, errors, p50_s, p99_s = _sums(parts)
    picked = sum(len(part.latency_s) for part in parts if part.picked)
    return Recently(
        window_s=span_s,
        rate_per_s=count / span_s,
        p50_s=p50_s,
        p99_s=p99_s,
        errors=errors,
        picked=picked,
        without_pick=count - picked,
        parts=rows[:MOST_PARTS],
        parts_left_out=max(len(rows) - MOST_PARTS, 0),
    )


def _bounded(why: dict[str, Any]) -> dict[str, Any]:
    """With as many workers as are told: the most likely where there are more."""
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
        history=[InForce(each.at_s, each.hash, list(each.changes)) for each in reversed(state.history)],
    )


def _counts(counter: Any) -> dict[str, float]:
    """A counter's values by its labels, joined by a dot."""
    samples = (sample for family in counter.collect() for sample in family.samples)
    return {".".join(each.labels.values()): each.value for each in samples if each.name.endswith("_total")}
