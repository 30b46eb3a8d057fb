"""The description as Grafana reads it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from dev.dashboard.panels import ROWS, Panel, Query

UID = "balancer-fleet"
"""Links to the dashboard hold across versions and installations."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _A_LINE = 24, 8, 3
"""Of the grid, of a panel, and the most panels side by side."""
VARIABLES = {
    "job": "label_values(balancer_build_info, job)",
    "model": 'label_values(balancer_requests_total{job=~"$job"}, model)',
    "worker": 'label_values(balancer_worker_ready{job=~"$job"}, worker)',
}
"""What is chosen at the top, and where the choices come from."""
ALERTS = 'ALERTS{alertname=~"Balancer.*",alertstate="firing"}'
"""Marked in all plots."""


def text() -> str:
    """The dashboard as a file of JSON."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana 10 and later import it."""
    return {
        "uid": UID,
        "title": "Balancer",
        "description": "A load balancer for Triton fleets: traffic, workers, decisions, and the process itself.",
        "tags": ["balancer", "triton"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(name, query) for name, query in VARIABLES.items())]},
        "annotations": {"list": [_alerts()]},
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = itertools.count(1), 0
    for row in ROWS:
        yield _row(next(number), row.title, top)
        top += 1
        for start in range(0, len(row.panels), _A_LINE):
            line = row.panels[start : start + _A_LINE]
            width = _WIDTH // len(line)
            for place_in_line, panel in enumerate(line):
                at = {"x": place_in_line * width, "y": top, "w": width, "h": _HEIGHT}
                yield _panel(next(number), panel, at)
            top += _HEIGHT


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom = {
        "fillOpacity": 20 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            _target(ref, query, panel.exemplars) for ref, query in zip("ABCDEFGH", panel.queries, strict=False)
        ],
    }


def _target(ref: str, query: Query, exemplars: bool) -> dict[str, Any]:
    shown = {"expr": query.expr, "legendFormat": query.legend, "range": True, "exemplar": exemplars}
    return {"refId": ref, "datasource": _SOURCE, **shown}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Matches series without that label's value too: requests that no worker got.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": ALERTS,
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}} {{model}} {{worker}}",
    }
