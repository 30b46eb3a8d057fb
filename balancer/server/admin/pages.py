"""The pages, and who may read them or drain workers."""

import asyncio
import json
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import LooseHeaders

from balancer import bounds
from balancer.bounds import OutOfBoundsError, shown
from balancer.config.sections import AdminSection
from balancer.scheduler.canary.split import Splits
from balancer.scheduler.room import room
from balancer.scheduler.snapshot import snapshot
from balancer.server.admin.server import AdminServer, Token
from balancer.server.internal_errors import InternalErrors
from balancer.server.metrics.series import OPEN_TYPE, PLAIN_TYPE, wants_open_metrics
from balancer.server.page.explain import canary, explain, read_question
from balancer.server.page.html import PageStreams, page
from balancer.server.page.page_data import AdminSources, PageData
from balancer.server.security.gatekeeper import names_of
from balancer.server.tally import picked, summary
from balancer.server.workers.drains import Drains, UnlistedWorkerError
from policies.base import Request

_PAGES = {
    "/ready": "200 once picks can be made, else 503 and why",
    "/live": "200 while the process answers",
    "/metrics": "Prometheus metrics",
    "/workers": "the fleet as the policy sees it",
    "/room": "how many requests of each model the fleet has room for",
    "/explain?model=NAME": "what the policy would do now, and why each worker left out is so "
    "(also: version, rows, key, priority, deadline_ms); POST: with a prompt, the body of a request of OpenAI's API",
    "/drain?worker=NAME": "whether a worker is drained by hand, and what is left there; POST to it, or to /undrain, "
    "changes that (`balancer drain`)",
    "/guard": "guard, shadow and rollout: who decides, and why",
    "/recent": "rate, p50, p99 and errors of the last seconds",
    "/config": "the config in force, its hash, and the last refusal",
    "/page.json": "all that this page shows, as JSON (model=NAME: of that model)",
}
MOST_CONNECTIONS = 64
"""At once: some people and two Prometheis. For one more, the one that has kept its place longest is cut off."""
REQUEST_TIMEOUT_S = 5.0
"""For a connection, from its start until the last byte of the answer is taken; then it is cut off."""
MOST_STREAMS = 8
"""Pages that are open and updated at once, each one of the connections; each update costs a millisecond or two."""
_OPEN = ("/live", "/ready")
"""Without the token: a kubelet's probes carry none, and these say nothing of models and workers but why not ready."""
_READ, _CHANGE = ("GET", "HEAD"), "POST"
_CHANGES: Mapping[str, tuple[str, ...]] = {"/drain": (*_READ, _CHANGE), "/undrain": (_CHANGE,)}
_WITH_BODY = "/explain"
"""By POST, which changes nothing."""
_ALLOWED: Mapping[str, tuple[str, ...]] = {**_CHANGES, _WITH_BODY: (*_READ, "POST")}
_LAG_PERIOD_S = 0.1


class Admin:
    def __init__(
        self,
        sources: AdminSources,
        section: AdminSection | None = None,
        client_san: str | None = None,
        local: bool = True,
    ) -> None:
        """`section`: the token; None: defaults. `client_san`: a name (DNS or URI) that a client's certificate must
        have; None: none must. `local`: whether only this machine reaches the pages.
        """
        self._from = sources
        self._client_san = client_san
        section = section or AdminSection()
        self._token = None if section.token_file is None else Token(Path(section.token_file))
        self._local = local
        self._server: AdminServer | None = None
        self._page = page(_PAGES)
        self._page_data = PageData(sources)
        self._streams = PageStreams(MOST_STREAMS)
        self._pages: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            "/": self._index,
            "/page.json": self._document,
            "/page/events": self._events,
            "/ready": self._ready,
            "/live": self._live,
            "/metrics": self._metrics,
            "/workers": self._workers,
            "/room": self._room,
            "/explain": self._explain,
            "/guard": self._guard,
            "/recent": self._recent,
            "/config": self._config,
        }
        if sources.drains is not None:
            self._pages |= dict.fromkeys(_CHANGES, self._drain)
        self._lag: asyncio.Task[None] | None = None
        self._internal_errors = InternalErrors(sources.metrics.handler_errors, sources.clock)

    async def start(self, address: str, tls: ssl.SSLContext | None = None) -> int:
        """Listen at `host:port` or `unix:PATH`; returns the port, which matters where it was 0.

        Raises:
            OSError: it cannot listen there.
            TokenError: the token file holds no token.
        """
        if self._token is not None:
            await self._token.start()
        closed = self._from.metrics.admin_closed
        self._server = AdminServer(
            self._answer, MOST_CONNECTIONS, REQUEST_TIMEOUT_S, closed=lambda cause: closed.labels(cause).inc()
        )
        port = await self._server.start(address, tls)
        self._lag = asyncio.create_task(self._measure_lag())
        return port

    async def stop(self) -> None:
        if self._lag is not None:
            self._lag.cancel()
        self._streams.stop()
        if self._server is not None:
            await self._server.stop()
        if self._token is not None:
            await self._token.stop()

    async def _measure_lag(self) -> None:
        """How late the event loop is: what all that this process does waits for, whatever kept the loop busy."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._from.metrics.loop_lag.observe(max(loop.time() - due_s, 0.0))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """A page, or why there is none; every request passes here."""
        try:
            return self._refusal(request) or await self._pages[request.path](request)
        except OutOfBoundsError as error:
            kind = "drain" if request.path in _CHANGES else "explain"
            self._from.metrics.refused_inputs.labels(kind, error.field).inc()
            return _json({"error": str(error)}, status=400)
        except Exception as error:  # a third party's policy may raise anything; other pages go on
            self._internal_errors.caught("admin", error)
            return _json({"error": "this page failed by a mistake of the balancer's; its log says how"}, status=500)

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        if refusal := self._stranger(request):
            return refusal
        allowed = _ALLOWED.get(request.path, _READ)
        if request.method not in allowed:
            only = "these pages are only read" if allowed == _READ else "here it is"
            error = f"{shown(request.method)} is refused; {only}: {' or '.join(allowed)}"
            return _json({"error": error}, 405, {"Allow": ", ".join(allowed)})
        if request.body_exists and (request.path, request.method) != (_WITH_BODY, "POST"):
            return _json({"error": "the request has a body; send none"}, status=413)
        token = None if request.path in _OPEN else self._token
        if token is not None and not token.allows(request.headers.get("Authorization", "")):
            error = (
                "send the header Authorization: Bearer TOKEN with the token of admin.token_file; in a browser, "
                "any name, and the token as password"
            )
            # A browser prompts for the second; a person cannot give it the first.
            schemes = [("WWW-Authenticate", f'{scheme} realm="balancer admin"') for scheme in ("Bearer", "Basic")]
            return _json({"error": error}, 401, schemes)
        if request.path not in self._pages:
            return _json({"error": f"{shown(request.path)} is no page"}, status=404)
        return None

    def _stranger(self, request: web.BaseRequest) -> web.Response | None:
        """Why this client gets no page at all: no certificate with the name, or the page of another site."""
        if self._client_san is not None and self._client_san not in _names(request):
            return _json({"error": f"your certificate must have the name {self._client_san}"}, status=403)
        headers = request.headers
        if headers.get("Sec-Fetch-Site") == "cross-site" and headers.get("Sec-Fetch-Mode") != "navigate":
            return _json({"error": "the page of another site may not read this"}, status=403)
        return None

    async def _index(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text=self._page.text, headers=self._page.headers, content_type="text/html")

    async def _document(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=self._page_data.latest(_question(request)), content_type="application/json")

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        question = _question(request)
        if refusal := self._streams.refusal:
            return _json({"error": refusal}, 503, {"Retry-After": "5"})
        if request.method == "HEAD":
            return web.Response(content_type="text/event-stream")
        server = self._server
        assert server is not None  # it serves this request
        return await self._streams.stream(
            request, document=lambda: self._page_data.latest(question), grant=lambda: server.grant(request)
        )

    async def _ready(self, _: web.BaseRequest) -> web.Response:
        why = self._from.readiness()
        return _json({"ready": not why, "reason": why}, status=503 if why else 200)

    async def _live(self, _: web.BaseRequest) -> web.Response:
        return _json({"live": True})

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        open_metrics = wants_open_metrics(request.headers.get("Accept", ""))
        text = await self._from.metrics.latest(open_metrics)
        headers = {"Content-Type": OPEN_TYPE if open_metrics else PLAIN_TYPE, "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=text.gzipped, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=text.plain, headers=headers)

    async def _workers(self, _: web.BaseRequest) -> web.Response:
        drains = self._from.drains or ()
        workers = [
            each | {"drained_by_hand": each["worker"] in drains}
            for each in snapshot(self._from.router, self._from.clock())
        ]
        return self._of_policy({"workers": workers})

    async def _room(self, _: web.BaseRequest) -> web.Response:
        found = room(self._from.router.fleet, self._from.clock())
        return _json({"room": {model: each._asdict() for model, each in found.items()}})

    async def _guard(self, _: web.BaseRequest) -> web.Response:
        return self._of_policy(canary(self._from.router, self._from.clock()))

    async def _config(self, _: web.BaseRequest) -> web.Response:
        return _json(self._from.config.as_json())

    async def _recent(self, _: web.BaseRequest) -> web.Response:
        sources = self._from
        window_s, parts = sources.recent().parts(sources.clock())
        error = sources.config.last_error
        return self._of_policy(
            {
                "window_s": window_s,
                **asdict(summary(window_s, parts)),
                **picked(parts),
                "decisions": sources.metrics.decisions.totals(),
                "splits": _splits(sources.splits),
                "config_refused": error and [str(problem) for problem in error.problems],
            }
        )

    async def _drain(self, request: web.BaseRequest) -> web.Response:
        drains = self._from.drains
        assert drains is not None  # else it is no page
        by = ", ".join(sorted(_names(request))) or request.remote or "unknown"
        if request.method == _CHANGE and (why := self._may_not_change(request)):
            return _json({"error": why}, status=403)
        return _drained(drains, request, by)

    def _may_not_change(self, request: web.BaseRequest) -> str:
        """Why a request may change nothing; empty: it may.

        Whoever gets so far has shown the token or an admin's certificate, where there is one. Without either, whoever
        is on this machine may, as they may report in any worker's name there; a web page that a browser on it has open
        may not, and pages always send `Origin`.
        """
        if "Origin" in request.headers:
            return "changes are not taken from web pages; use `balancer drain`"
        if self._client_san is None and self._token is None and not self._local:
            return (
                "listen.admin is open to other machines, and nobody has to show who they are: set admin.token_file, or "
                "tls.admin with a client_ca_file, or listen on 127.0.0.1"
            )
        return ""

    async def _explain(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            if request.query:
                return _json({"error": "the body says what is asked; name nothing in the address"}, status=400)
            try:
                body = await request.read()
            except web.HTTPRequestEntityTooLarge as error:
                return _json({"error": f"the body is too large: {error.text}"}, status=413)
            headers = {name.lower(): value for name, value in request.headers.items()}
            question = self._from.read_prompt(headers, body)
        else:
            question = read_question(request.query)
        now_s = self._from.clock()
        held = self._from.held(question.model, now_s)
        return _json(explain(self._from.router, question, now_s, self._from.splits) | held)

    def _of_policy(self, content: dict[str, Any]) -> web.Response:
        return _json({"policy": self._from.router.policy.name, **content})


def _question(request: web.BaseRequest) -> Request | None:
    """The request for a model that the document is to explain; None: any. OutOfBoundsError where it is none."""
    return read_question(request.query) if request.query else None


def _drained(drains: Drains, request: web.BaseRequest, by: str) -> web.Response:
    if unknown := sorted(set(request.query) - {"worker"}):
        raise OutOfBoundsError("parameter", unknown[0], "must be worker")
    worker = bounds.text("worker", request.query.get("worker", ""))
    if not worker:
        raise OutOfBoundsError("worker", worker, f"must be given: {request.path}?worker=NAME, as in /workers")
    try:
        if request.method != _CHANGE:
            return _json(drains.state(worker))
        return _json((drains.drain if request.path == "/drain" else drains.undrain)(worker, by))
    except UnlistedWorkerError as error:
        return _json({"error": str(error)}, status=404)


def _splits(splits: Splits) -> list[dict[str, Any]]:
    """What became of each split model's versions since the split began, the old one first."""
    return [
        {
            "model": model,
            "versions": [
                {"version": version, "requests": split.arms[new].requests, "errors": split.arms[new].errors}
                for new, version in ((False, split.settings.old), (True, split.settings.new))
            ],
            "returned": split.returned,
        }
        for model, split in splits.of.items()
    ]


def _names(request: web.BaseRequest) -> frozenset[str]:
    return names_of(request.get_extra_info("peercert"))


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
