"""The pages, and who may read them."""

from __future__ import annotations

import dataclasses
import json
import math
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import LooseHeaders

from balancer.config.sections import AdminSection
from balancer.config.watch import ConfigState
from balancer.core.bounds import OutOfBoundsError, shown
from balancer.core.router import Router
from balancer.core.shown import snapshot
from balancer.core.trials.split import Splits
from balancer.operate.admin.changes import CHANGE, METHODS, READ, change, refusal
from balancer.operate.admin.server import AdminServer
from balancer.operate.admin.token import Token
from balancer.operate.drains import Drains
from balancer.operate.explain import explain, read_question, steering
from balancer.operate.exposition import OPEN_TYPE, PLAIN_TYPE, wants_open_metrics
from balancer.operate.journal import Journal
from balancer.operate.loop_lag import LoopLag
from balancer.operate.metrics import Metrics
from balancer.operate.mistakes import Mistakes
from balancer.operate.page.files import page
from balancer.operate.page.maker import Maker, Sources
from balancer.operate.page.watchers import Watchers
from balancer.operate.recent import Recent
from balancer.operate.splits import so_far
from policies.base import Request

_PAGES = {
    "/ready": "200 once picks can be made, else 503 and why",
    "/live": "200 while the process answers",
    "/metrics": "Prometheus metrics",
    "/workers": "the fleet as the policy sees it",
    "/explain?model=NAME": "what the policy would do now, and why each worker left out is so "
    "(also: version, rows, key, priority, deadline_ms)",
    "/drain?worker=NAME": "whether a worker is drained by hand, and what is left there; POST to it, or to /undrain, "
    "changes that (`balancer drain`)",
    "/guard": "guard, shadow and rollout: who decides, and why",
    "/recent": "rate, p50, p99 and errors of the last seconds",
    "/config": "the config in force, its hash, and the last refusal",
    "/page.json": "all that this page shows, as JSON (model=NAME: of that model)",
}
"""Beside the page at / and its updates at /page/events."""
_OPEN = ("/live", "/ready")
"""Without the token: a kubelet's probes carry none, and these say nothing of models and workers but why not ready."""


class Admin:
    """Serves the pages of one process."""

    def __init__(
        self,
        router: Router,
        metrics: Metrics,
        clock: Callable[[], float],
        readiness: Callable[[], str],
        recent: Callable[[], Recent],
        config: ConfigState,
        journal: Journal | None = None,
        process: int = 0,
        section: AdminSection | None = None,
        client_san: str | None = None,
        drains: Drains | None = None,
        held: Callable[[str, float], dict[str, Any]] = lambda model, now_s: {},
        local: bool = True,
        splits: Splits | None = None,
    ) -> None:
        """`readiness` returns why picks cannot be made, empty if they can; `recent` the traffic until now; `process` is
        the number of this one, from 0.

        `section`: the limits and the token; None: defaults. `client_san`: a name (DNS or URI) that the certificate of
        whoever asks must have; None: none must. `held`: who waits for a worker with a model. `drains`: who is drained
        by hand; None: nobody can be. `local`: whether only this machine reaches the pages. `splits`: by which versions
        share a model's requests; None: none do.
        """
        self._router = router
        self._metrics_of_process = metrics
        self._clock = clock
        self._readiness = readiness
        self._recent_of_process = recent
        self._config_state = config
        self._client_san = client_san
        section = section or AdminSection()
        self._token = None if section.token_file is None else Token(Path(section.token_file))
        self._section = section
        self._server: AdminServer | None = None
        pages = (self._ready, self._live, self._metrics, self._workers, self._explain)
        named = (*pages, self._guard, self._recent, self._config)
        self._page = page(_PAGES)
        sources = Sources(
            router, metrics, clock, readiness, recent, config, journal or Journal(), process, drains or (), splits
        )
        self._maker = Maker(sources)
        self._watchers = Watchers(section.max_watchers)
        self._pages: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            "/": self._index,
            "/page.json": self._document,
            "/page/events": self._events,
            **{f"/{page.__name__.strip('_')}": page for page in named},
        }
        self._drains, self._held = drains, held
        self._local = local
        self._splits = splits or Splits()
        if drains is not None:
            self._pages |= dict.fromkeys(METHODS, self._drain)
        self._lag = LoopLag(metrics.loop_lag.observe)
        self._mistakes = Mistakes(metrics.handler_errors, clock)

    async def start(self, address: str, tls: ssl.SSLContext | None = None) -> int:
        """Listen at `host:port` or `unix:PATH`; returns the port, which matters where 0 was asked for.

        Raises:
            OSError: it cannot listen there.
            TokenError: the token file holds no token.
        """
        if self._token is not None:
            await self._token.start()
        self._server = AdminServer(
            self._answer,
            self._section.max_connections,
            self._section.request_timeout_s,
            closed=lambda cause: self._metrics_of_process.admin_closed.labels(cause).inc(),
        )
        port = await self._server.start(address, tls)
        self._lag.start()
        return port

    async def stop(self) -> None:
        """Stop listening."""
        self._lag.stop()
        self._watchers.stop()
        if self._server is not None:
            await self._server.stop()
        if self._token is not None:
            await self._token.stop()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """A page, or why there is none; every request passes here."""
        try:
            return self._refusal(request) or await self._pages[request.path](request)
        except Exception as error:  # a third party's policy may raise anything; other pages go on
            self._mistakes.caught("admin", error)
            return _json({"error": "this page failed by a mistake of the balancer's; its log says how"}, status=500)

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Why the request gets no page."""
        if refusal := self._stranger(request):
            return refusal
        allowed = METHODS.get(request.path, READ)
        if request.method not in allowed:
            only = "these pages are only read" if allowed == READ else "here it is"
            error = f"{shown(request.method)} is refused; {only}: {' or '.join(allowed)}"
            return _json({"error": error}, 405, {"Allow": ", ".join(allowed)})
        if request.body_exists:
            return _json({"error": "the request has a body; send none"}, status=413)
        token = None if request.path in _OPEN else self._token
        if token is not None and not token.allows(request.headers.get("Authorization", "")):
            error = (
                "send the header Authorization: Bearer TOKEN with the token of admin.token_file; in a browser, "
                "any name, and the token as password"
            )
            # A browser asks the person for the second, since it cannot be told the first.
            schemes = [("WWW-Authenticate", f'{scheme} realm="balancer admin"') for scheme in ("Bearer", "Basic")]
            return _json({"error": error}, 401, schemes)
        if request.path not in self._pages:
            return _json({"error": f"{shown(request.path)} is no page; / lists them"}, status=404)
        return None

    def _stranger(self, request: web.BaseRequest) -> web.Response | None:
        """Why whoever asks gets none, whatever is asked: no certificate with the name, or the page of another site."""
        if self._client_san is not None and self._client_san not in _names(request):
            return _json({"error": f"your certificate must have the name {self._client_san}"}, status=403)
        headers = request.headers
        if headers.get("Sec-Fetch-Site") == "cross-site" and headers.get("Sec-Fetch-Mode") != "navigate":
            return _json({"error": "the page of another site may not read this"}, status=403)
        return None

    async def _index(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text=self._page.text, headers=self._page.headers, content_type="text/html")

    async def _document(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = self._asked(request)
        if isinstance(asked, web.Response):
            return asked
        return web.Response(body=self._maker.latest(asked), content_type="application/json")

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = self._asked(request)
        if isinstance(asked, web.Response):
            return asked
        if refusal := self._watchers.refusal:
            return _json({"error": refusal}, 503, {"Retry-After": "5"})
        if request.method == "HEAD":
            return web.Response(content_type="text/event-stream")
        server = self._server
        assert server is not None  # it serves this request
        return await self._watchers.stream(
            request, document=lambda: self._maker.latest(asked), grant=lambda: server.grant(request)
        )

    def _asked(self, request: web.BaseRequest) -> Request | web.Response | None:
        """The request for a model that the document is to explain; None: any; or why that cannot be."""
        try:
            return read_question(request.query) if request.query else None
        except OutOfBoundsError as error:
            return self._out_of_bounds(error)

    def _out_of_bounds(self, error: OutOfBoundsError) -> web.Response:
        self._metrics_of_process.refused_inputs.labels("explain", error.field).inc()
        return _json({"error": str(error)}, status=400)

    async def _ready(self, _: web.BaseRequest) -> web.Response:
        why = self._readiness()
        return _json({"ready": not why, "reason": why}, status=503 if why else 200)

    async def _live(self, _: web.BaseRequest) -> web.Response:
        return _json({"live": True})

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        open_metrics = wants_open_metrics(request.headers.get("Accept", ""))
        text = await self._metrics_of_process.latest(open_metrics)
        headers = {"Content-Type": OPEN_TYPE if open_metrics else PLAIN_TYPE, "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=text.gzipped, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=text.plain, headers=headers)

    async def _workers(self, _: web.BaseRequest) -> web.Response:
        workers = snapshot(self._router, self._clock())
        drains = self._drains or ()
        page = [each | {"drained_by_hand": each["worker"] in drains} for each in workers]
        return _json({"policy": self._router.policy.name, "workers": page})

    async def _guard(self, _: web.BaseRequest) -> web.Response:
        return _json({"policy": self._router.policy.name, **steering(self._router, self._clock())})

    async def _config(self, _: web.BaseRequest) -> web.Response:
        return _json(self._config_state.as_json())

    async def _recent(self, _: web.BaseRequest) -> web.Response:
        error = self._config_state.last_error
        summary = self._recent_of_process().summary(self._clock())
        page = {"policy": self._router.policy.name, **dataclasses.asdict(summary)}
        made = (sample for family in self._metrics_of_process.decisions.collect() for sample in family.samples)
        decisions = {sample.labels["policy"]: sample.value for sample in made}
        refused = error and [str(problem) for problem in error.problems]
        return _json({**page, "decisions": decisions, "splits": so_far(self._splits), "config_refused": refused})

    async def _drain(self, request: web.BaseRequest) -> web.Response:
        assert self._drains is not None  # else it is no page
        known = self._client_san is not None or self._token is not None
        if request.method == CHANGE and (why := refusal(request, known=known, local=self._local)):
            return _json({"error": why}, status=403)
        by = ", ".join(sorted(_names(request))) or request.remote or "unknown"
        try:
            status, answer = change(self._drains, request, by)
        except OutOfBoundsError as error:
            self._metrics_of_process.refused_inputs.labels("drain", error.field).inc()
            return _json({"error": str(error)}, status=400)
        return _json(answer, status)

    async def _explain(self, request: web.BaseRequest) -> web.Response:
        try:
            asked = read_question(request.query)
        except OutOfBoundsError as error:
            return self._out_of_bounds(error)
        now_s = self._clock()
        return _json(explain(self._router, asked, now_s, self._splits) | self._held(asked.model, now_s))


def _names(request: web.BaseRequest) -> set[str]:
    """The names in the certificate that the client showed, if it showed one that is trusted."""
    certificate = request.get_extra_info("peercert") or {}
    return {name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")}


def _json(value: Any, status: int = 200, headers: LooseHeaders | None = None) -> web.Response:
    text = json.dumps(_finite(value), indent=1) + "\n"
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null stands for both."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
