"""Metrics and labels as the balancer declares them, and those that PromQL names."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from balancer.config.config import Config
from balancer.config.learning import Learned
from balancer.discovery.inference.pods import PoolCounts
from balancer.discovery.pods.watch import PodCounts
from balancer.extproc.endpoints import Ads
from balancer.extproc.picker import Picker
from balancer.fleet_api.fan_out import FleetCallCounts as FleetCounts
from balancer.native.layouts import COUNTS
from balancer.reports.intake import ReportCounts
from balancer.scheduler.canary.split import Splits
from balancer.server.metrics import Metrics
from balancer.server.metrics.metrics import split_metrics
from balancer.server.native.front import native_metrics
from balancer.server.peers_front import PeersFront
from balancer.server.workers.drains import Drains
from balancer.server.workers.source import ClusterObjectives, pod_metrics
from support.fleets import make_router

SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "info": ("_info",),
}
TARGET_LABELS = frozenset(("job", "instance", "namespace"))
"""Prometheus' own, of what it scrapes."""
PROMETHEUS_OWN = {"up": TARGET_LABELS, "ALERTS": TARGET_LABELS | {"alertname", "alertstate"}}
_WORD = r"[a-zA-Z_][a-zA-Z0-9_:]*"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"\b((?:balancer|process|gen_ai)[_:][a-zA-Z0-9_:]*|up|ALERTS)\b(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")


def dashboard() -> dict[str, Any]:
    """Grafana's, as the file has it."""
    file = Path(__file__).resolve().parents[2] / "deploy" / "observability" / "dashboard.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def declared() -> dict[str, frozenset[str]]:
    """Names of samples, each with its labels, of a balancer with all that may be configured.

    As declared, since a label is only seen in what is exported once something was counted.
    """
    metrics = Metrics(make_router(1), lambda: 0.0)
    config: Any = SimpleNamespace(
        hash="0", loaded_at_s=0.0, last_error=None, learned=Learned(stage="resting", since_s=0.0)
    )
    metrics.watch(ReportCounts(), Ads(), config, {"envoy": SimpleNamespace(expires_s=1.0)})
    # What the module's counts are read from.
    state = SimpleNamespace(counts=lambda: dict.fromkeys(COUNTS, 0), in_flight=0)
    tables: Any = type("Tables", (), {"asked": 0, "seconds": 0.0, "wait_s": 0.0, "__len__": lambda _: 0})()
    router: Any = SimpleNamespace(state=state, replaced=0, tables=tables)
    metrics.register(lambda: native_metrics(router))
    objectives = ClusterObjectives(Config(), Picker(make_router(1), lambda: 0.0))
    metrics.register(lambda: pod_metrics(PodCounts(), PoolCounts(), objectives))
    metrics.register(Drains(make_router(1), lambda: 0.0, lambda _: None).metrics)
    metrics.register(lambda: split_metrics(Splits()))
    PeersFront(Config(), 0, make_router(1), metrics, lambda _: None, lambda: False)
    registry = CollectorRegistry()
    FleetCounts(registry)
    library = (*registry._collector_to_names, metrics.decision_log_lines)
    return dict((*_of_library(library), *_of_scraped(metrics), *_of_families(metrics)))


def _of_library(collectors: Iterable[Any]) -> Iterator[tuple[str, frozenset[str]]]:
    for collector in collectors:
        for family in collector.collect():
            yield f"{family.name}_total", frozenset(collector._labelnames)


def _of_scraped(metrics: Metrics) -> Iterator[tuple[str, frozenset[str]]]:
    for family in (family for families in metrics.scraped for family in families()):
        if family.name != "balancer_decision_log_lines":
            labels = {label for sample in family.samples for label in sample.labels}
            labels |= set(getattr(family, "_labelnames", ()))
            for suffix in SUFFIXES[family.type]:
                yield family.name + suffix, frozenset(labels)


def _of_families(metrics: Metrics) -> Iterator[tuple[str, frozenset[str]]]:
    for family in metrics.families:
        for suffix in SUFFIXES["histogram"] if family.kind == "histogram" else ("",):
            le = ("le",) if suffix == "_bucket" else ()
            yield family.name + suffix, frozenset((*family.label_names, *le))


def selectors(expr: str) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Each metric that an expression names, with operator and value for each label that it matches by."""
    found = []
    texts = iter(_STRING.findall(expr))
    for name, matchers in _SELECTOR.findall(_STRING.sub("TEXT", expr)):
        by = re.findall(rf"({_WORD})\s*(=~|!~|!=|=)\s*TEXT", matchers or "")
        found.append((name, {label: (operator, next(texts)[1:-1]) for label, operator in by}))
    assert next(texts, None) is None, f"a text that is no label's value: {expr}"
    return found


def groupings(expr: str) -> set[str]:
    """Labels by which an expression groups or joins."""
    return {label.strip() for labels in _GROUPING.findall(expr) for label in labels.split(",") if label.strip()}


def problems(expr: str, known: dict[str, frozenset[str]]) -> list[str]:
    """Metrics and labels of an expression that are not among the known ones."""
    found, labels = [], set(TARGET_LABELS)
    for name, matchers in selectors(expr):
        if name not in known:
            found.append(f"no metric {name}")
            continue
        labels |= known[name]
        found += [f"{name} has no label {label}" for label in matchers if label not in known[name] | TARGET_LABELS]
    return found + [f"nothing there has the label {label}: {expr}" for label in groupings(expr) - labels]


def labels_of(expr: str, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """Labels that what an expression gives may have: those it groups by, else those of its metrics."""
    grouped = groupings(expr)
    if grouped:
        return frozenset(grouped - {"le"})
    return TARGET_LABELS.union(*(known.get(name, ()) for name, _ in selectors(expr)))
