"""The admin HTTP interface: what an SRE looks at. JSON everywhere, but /metrics (Prometheus) and the index (HTML)."""

from __future__ import annotations

import dataclasses
import html
import json
import logging
import math
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from balancer.core.asking import ask
from balancer.core.errors import RoutingError
from balancer.core.router import Asked, Router
from balancer.metrics import Metrics
from balancer.recent import Summary
from balancer.schema import split_address
from policies.base import FloatArray, Request
from policies.hashing import key_of

logger = logging.getLogger(__name__)

_PAGES = {
    "/ready": "200 once picks can be made, else 503 and why",
    "/live": "200 while the process answers",
    "/metrics": "Prometheus metrics",
    "/workers": "the fleet as the policy sees it",
    "/explain?model=NAME": "what the policy would do now, and why each worker left out is so "
    "(also: version, rows, key, priority, deadline_ms)",
    "/guard": "guard, shadow and rollout: who decides, and why",
    "/recent": "rate, p50, p99 and errors of the last seconds",
    "/config": "the config in force, its hash, and the last refusal",
}
_PARAMETERS = {"model", "version", "rows", "key", "priority", "deadline_ms"}
_MOST_MOVED = 5
"""Inputs shown of those that moved a pick: the others matter less than any of these."""
_COLUMNS = (
    *("weight", "in_flight", "reported_pending", "pending", "backlog_s", "completion_s", "service_s", "latency_s"),
    *("error_rate", "tokens", "report_age_s"),
)


class Admin:
    """Serves the pages of one process."""

    def __init__(
        self,
        router: Router,
        metrics: Metrics,
        clock: Callable[[], float],
        readiness: Callable[[], str],
        recent: Callable[[], Summary],
        config: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`readiness` returns why picks cannot be made, empty if they can; `config` what /config shows."""
        self._router = router
        self._metrics_of_process = metrics
        self._clock = clock
        self._readiness = readiness
        self._recent_of_process = recent
        self._config_shown = config
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, tls: ssl.SSLContext | None = None) -> int:
        """Listen at `host:port`; returns the port, which matters where 0 was asked for."""
        host, port = split_address(address)
        application = web.Application()
        application.router.add_get("/", self._index)
        first = (self._ready, self._live, self._metrics, self._workers, self._explain)
        pages = (*first, self._guard, self._recent, self._config)
        for page in pages:
            application.router.add_get(f"/{page.__name__.strip('_')}", page)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _index(self, _: web.Request) -> web.Response:
        rows = "".join(
            f'<tr><td><a href="{html.escape(path.replace("NAME", ""))}">{html.escape(path)}</a></td>'
            f"<td>{html.escape(what)}</td></tr>"
            for path, what in _PAGES.items()
        )
        page = (
            '<!doctype html><meta charset="utf-8"><title>balancer</title>'
            "<style>body{font:16px system-ui;margin:2rem}td{padding:.2rem 1.5rem .2rem 0}</style>"
            f"<h1>balancer</h1><p>policy in force: <b>{html.escape(self._router.policy.name)}</b></p>"
            f"<table>{rows}</table>"
        )
        return web.Response(text=page, content_type="text/html")

    async def _ready(self, _: web.Request) -> web.Response:
        why = self._readiness()
        return _json({"ready": not why, "reason": why}, status=503 if why else 200)

    async def _live(self, _: web.Request) -> web.Response:
        return _json({"live": True})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics_of_process.exposition(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def _workers(self, _: web.Request) -> web.Response:
        return _json({"policy": self._router.policy.name, "workers": self._router.snapshot(self._clock())})

    async def _guard(self, _: web.Request) -> web.Response:
        return _json({"policy": self._router.policy.name, **_steering(self._router, self._clock())})

    async def _config(self, _: web.Request) -> web.Response:
        return _json(dict(self._config_shown()))

    async def _recent(self, _: web.Request) -> web.Response:
        error = self._config_shown()["last_error"]
        page = {"policy": self._router.policy.name, **dataclasses.asdict(self._recent_of_process())}
        return _json({**page, "config_refused": error and error["problems"]})

    async def _explain(self, request: web.Request) -> web.Response:
        try:
            asked = read_question(request.query)
        except ValueError as error:
            return _json({"error": str(error)}, status=400)
        return _json(explain(self._router, asked, self._clock()))


def read_question(query: Mapping[str, str]) -> Request:
    """The request that `/explain` is asked about; ValueError names the parameter, its value and the remedy."""
    if not query.get("model"):
        raise ValueError("model is missing; ask as /explain?model=NAME, see /workers for the names")
    if unknown := sorted(set(query) - _PARAMETERS):
        raise ValueError(f"{unknown[0]} is no parameter; there are {', '.join(sorted(_PARAMETERS))}")
    numbers: dict[str, float] = {}
    for name in ("rows", "priority", "deadline_ms"):
        if name in query:
            try:
                numbers[name] = float(query[name])
            except ValueError:
                raise ValueError(f"{name} is {query[name]!r}; give a number") from None
    return Request(
        model=query["model"],
        version=query.get("version", ""),
        rows=numbers.get("rows", 1.0),
        key=key_of(query["key"]) if query.get("key") else None,
        priority=int(numbers.get("priority", 0)),
        deadline_s=numbers.get("deadline_ms", math.inf) / 1000,
    )


def explain(router: Router, request: Request, now_s: float) -> dict[str, Any]:
    """The probabilities that would be given now, by whom, what that sees, and why each ineligible worker is so."""
    answer: dict[str, Any] = {"model": request.model, "version": request.version, "policy": router.policy.name}
    answer |= _steering(router, now_s)
    reasons = router.reasons(request, now_s)
    try:
        asked = router.asked(request, now_s)
    except RoutingError as error:
        workers = [{"worker": name, "eligible": False, "why_not": why} for name, why in reasons.items()]
        return answer | {"refused": str(error), "workers": workers}
    view, probabilities = asked.view, asked.probabilities
    columns = {name: getattr(view, name) for name in _COLUMNS}
    moved, shadow = _moved(asked), _shadow(router, asked)
    return answer | {
        "asked": asked.policy.name,
        "asked_as": asked.role,
        **({"moved_by_is_in": asked.policy.score_unit} if moved else {}),
        "workers": [
            {
                "worker": name,
                "probability": float(probabilities[row]),
                **({} if shadow is None else {"shadow_probability": float(shadow[row])}),
                "eligible": bool(view.eligible[row]),
                "why_not": reasons[name],
                **({"moved_by": moved[row]} if row in moved else {}),
                "sees": {column: float(values[row]) for column, values in columns.items()},
            }
            for row, name in enumerate(router.fleet.names)
        ],
    }


def _steering(router: Router, now_s: float) -> dict[str, Any]:
    """Who decides, and what guards, shadow and rollout say to that."""
    if router.steering is not None:
        return router.steering.explain(now_s)
    return {"decides": router.policy.name, "guards": {}, "shadow": None, "rollout": None}


def _shadow(router: Router, asked: Asked) -> FloatArray | None:
    """What the shadow would do; None where there is none, or it has no valid answer."""
    if router.steering is None or router.steering.shadow is None:
        return None
    return ask(router.steering.shadow.policy, asked.request, asked.view)[0]


def _moved(asked: Asked) -> dict[int, dict[str, float]]:
    """By row of each eligible worker, what inputs add to its score beyond the mean of them, the few largest first.

    Empty where the policy does not say.
    """
    eligible = asked.view.eligible
    try:
        contributions = asked.policy.contributions(asked.request, asked.view)
        beyond = {name: values - values[eligible].mean() for name, values in contributions.items()}
    except Exception:  # a third party's policy may raise anything; the rest of the page is true without
        logger.exception("policy %s cannot say what moved its pick", asked.policy.name)
        return {}
    rows = [int(row) for row in eligible.nonzero()[0]] if beyond else []
    return {row: dict(sorted(_rounded(beyond, row), key=lambda item: -abs(item[1]))[:_MOST_MOVED]) for row in rows}


def _rounded(beyond: Mapping[str, FloatArray], row: int) -> list[tuple[str, float]]:
    return [(name, float(f"{values[row]:.3g}")) for name, values in beyond.items()]


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        text=json.dumps(_finite(value), indent=1) + "\n", status=status, content_type="application/json"
    )


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null stands for both."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
