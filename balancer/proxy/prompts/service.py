"""The HTTP service: a request of OpenAI's API, forwarded as it is; its answer as it comes, event by event.

While nothing was said, another worker may be asked. After that a worker's death ends the stream by an event with the
error, or, where `proxy.resume` says so, another goes on.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.channels.channels import RestPorts, UnknownWorkerError, whole_body
from balancer.extproc.kserve import Call
from balancer.extproc.names import CHAT, COMPLETIONS, GATEWAY_REQUEST_ID_HEADER
from balancer.extproc.prompts import AnswerReader, TokenShares, Usage, read_request
from balancer.extproc.responses import OF_ABORTED, By, openai_error, verdict
from balancer.proxy.attempts import Attempts, Clocks
from balancer.proxy.inflating import NoRoomError, encoding_of
from balancer.proxy.messages import (
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    Arrived,
    ProxyAnswer,
    http_status,
    passed_on,
    pushback,
    retry_headers,
)
from balancer.proxy.prompts.said import Said
from balancer.proxy.service import Proxy, RefusedError
from balancer.proxy.settings import ProxySettings
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.errors import RoutingError

_UNREACHED = "no connection to a worker; retry later"
_DIED = "the worker that answered has failed; ask again"
_FAILED = "the balancer failed at this request; its log says how"
_UNREACHABLE = aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, UnknownWorkerError
_STREAM_TYPE = "text/event-stream"
_OF_CONNECTION = frozenset(("connection", "keep-alive", "transfer-encoding", "upgrade", "expect", "server", "date"))
"""Beside those that `passed_on` leaves out."""
_BREAK = b"\n\n"
_MOST_EVENT_BYTES = 2**22
_MOST_KEPT_BYTES = 2**29
"""The bodies that are kept take no more together. One is kept until its answer begins, with `proxy.resume` until it
ends."""
_NO_ROOM = "the balancer keeps as many prompts as it may; retry later"
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """How a client's request ended, however many workers were asked."""

    http_status: int
    """0: none came."""
    by: By
    worker: str = ""
    """The last that was asked; empty: none was."""
    policy: str = ""
    latency_s: float = math.nan
    answering_s: float = math.nan
    """From the first token to the end."""
    usage: Usage | None = None
    """Tokens, as the last worker tells them; None: it did not answer to the end."""
    sent_bytes: int = 0
    received_bytes: int = 0


class PromptListener(Protocol):
    def first_token(self, call: Call, decision: Decision) -> None: ...

    def answered_prompt(self, arrived: Arrived, end: PromptEnd) -> None: ...


class _ClientLeftError(Exception):
    pass


class Prompts:
    """Answers one request after the other on any number of connections, which are Envoy's."""

    def __init__(
        self,
        proxy: Proxy,
        attempts: Attempts,
        ports: RestPorts,
        listener: PromptListener,
        clocks: Clocks,
        shares: TokenShares,
        failed: Callable[[Exception], None],
        *,
        serves: bool = True,
    ) -> None:
        """`failed` and `serves` as in `Rest`; `ports`: of the workers."""
        self._proxy, self.attempts, self.ports = proxy, attempts, ports
        self.listener, self.clocks = listener, clocks
        self._shares, self._failed, self._serves = shares, failed, serves
        self._settings = ProxySettings()
        self._kept_bytes = 0

    @property
    def resumes(self) -> bool:
        return self._settings.proxy.resume

    def configure(self, settings: ProxySettings) -> None:
        self._settings = settings

    def takes(self, path: str) -> bool:
        return self._serves and path.partition("?")[0] in (CHAT, COMPLETIONS)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        forwarded: _Forwarded | None = None
        try:
            with self._proxy.under_way(), contextlib.ExitStack() as kept:
                self._keep(request, kept)
                # No name for the body: it may be megabytes, and the answer may last.
                forwarded = _Forwarded(self, request, self._arrived(request, await self._body(request)), kept.close)
                return await forwarded.run()
        except (RefusedError, NoRoomError) as error:
            return _refused(error.answer)
        except _ClientLeftError as error:
            raise ConnectionResetError from error
        except (ConnectionError, TimeoutError, web.HTTPException):  # of the one that asks
            raise
        except Exception as error:
            self._failed(error)
            if forwarded is not None and forwarded.response is not None:
                raise ConnectionResetError from error
            return _error(500, _FAILED)

    def _keep(self, request: web.BaseRequest, until: contextlib.ExitStack) -> None:
        """Room for a body; raises RefusedError where there is none."""
        told = None if request.headers.get("content-encoding") else request.content_length
        size_bytes = bounds.MAX_PROMPT_BYTES if told is None else min(told, bounds.MAX_PROMPT_BYTES)
        if self._kept_bytes + size_bytes > _MOST_KEPT_BYTES:
            self.attempts.counts["prompts", "no_room"] += 1
            raise RefusedError(pushback(ProxyAnswer(RESOURCE_EXHAUSTED, _NO_ROOM, unexecuted=True), _RETRY_S))
        self._kept_bytes += size_bytes
        until.callback(self._let_go, size_bytes)

    def _let_go(self, size_bytes: int) -> None:
        self._kept_bytes -= size_bytes

    async def _body(self, request: web.BaseRequest) -> bytes:
        inflating = self._proxy.inflating
        try:
            if not encoding_of(request):
                return await inflating.body(request, None)
            async with inflating.room() as room:
                return await inflating.body(request, room)
        except OutOfBoundsError as error:
            self._proxy.refuse(error)

    def _arrived(self, request: web.BaseRequest, body: bytes) -> Arrived:
        # As a pick reads them.
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.raw_headers}
        # How it ended is known here: nobody will tell of it under an id.
        headers.pop(GATEWAY_REQUEST_ID_HEADER, None)
        headers |= {":path": request.rel_url.raw_path_qs}
        try:
            call = read_request(headers, body, self._settings.names, self._shares)
            self._proxy.check_ready()
            arrived = Arrived(call, body, ())
            away = self._proxy.over_limit(arrived)
        except OutOfBoundsError as error:
            self._proxy.refuse(error)
        if away is not None:
            raise RefusedError(away)
        return arrived


class _Forwarded:
    def __init__(
        self, prompts: Prompts, request: web.BaseRequest, arrived: Arrived, let_go: Callable[[], None]
    ) -> None:
        """`let_go` is called once the body is not needed any more; or else the caller does at the end."""
        self._let_go = let_go
        self._prompts, self._attempts, self._request = prompts, prompts.attempts, request
        self._arrived, self._path = arrived, request.rel_url.raw_path_qs
        self._headers = _passed_up(request)
        self._said = Said(request.rel_url.raw_path, arrived.data) if prompts.resumes else None
        self.response: web.StreamResponse | None = None
        """None: its client was told nothing so far."""
        self._announces = False
        """Another worker is asked for the rest, and people are to be told."""
        self._end = PromptEnd(0, "client")

    async def run(self) -> web.StreamResponse:
        try:
            return await self._run()
        finally:
            self._prompts.listener.answered_prompt(self._arrived, self._end)

    async def _run(self) -> web.StreamResponse:
        tried: set[str] = set()
        last: ProxyAnswer | None = None
        while True:
            try:
                decision = await self._attempts.place(self._arrived, tried)
            except RoutingError as error:
                if self.response is not None:
                    self._attempts.counts["resumed", "no_worker"] += 1
                return await self._given_up(last or self._attempts.refused(error))
            tried.add(decision.worker)
            last = await self._with(decision)
            if last is None:
                assert self.response is not None  # all of it was passed on
                return self.response
            if self.response is None and await self._attempts.may_go_on(self._arrived, last, len(tried), tried):
                continue
            if not self._goes_on(last):
                return await self._given_up(last)

    def _goes_on(self, broken: ProxyAnswer) -> bool:
        """Whether another worker is to be asked for the rest."""
        if self._said is None or broken.unexecuted or not self._arrived.call.streams_tokens:
            return False
        rest = self._said.rest()
        self._attempts.counts["resumed", "impossible" if rest is None else "made"] += 1
        if rest is None:
            return False
        self._arrived = replace(self._arrived, data=rest)
        self._announces = self.response is not None
        return True

    async def _with(self, decision: Decision) -> ProxyAnswer | None:
        """Ask the worker that was decided on; None: its answer was passed on, whole."""
        clocks = self._prompts.clocks
        read, start_s, first_s = _Read(self._end.received_bytes), clocks.now(), math.nan
        sent_bytes, worker = len(self._arrived.data), decision.worker
        end = PromptEnd(0, "client", worker, decision.policy, sent_bytes=sent_bytes)
        answer: ProxyAnswer | None = None
        try:
            opened = self._prompts.ports.open(worker, "POST", self._path, self._arrived.data, self._headers)
            async with opened as upstream:
                end = replace(end, http_status=upstream.status)
                self._arrived = replace(self._arrived, data=b"")
                if self._said is None:
                    self._let_go()
                if upstream.content_type != _STREAM_TYPE:
                    body = await whole_body(upstream)
                    read.feed(body)
                    end = replace(end, by="")
                    await self._pass_whole(upstream, body)
                else:
                    async for chunk in upstream.content.iter_any():
                        if math.isnan(first_s):
                            first_s = clocks.now()
                            self._prompts.listener.first_token(self._arrived.call, decision)
                        read.feed(chunk)
                        await self._pass(upstream, read.events(chunk), worker)
                    end = replace(end, by="")
                    await self._pass_end(upstream, read.left)
        except (aiohttp.ClientError, UnknownWorkerError, TimeoutError) as error:
            unreached = isinstance(error, _UNREACHABLE)
            end = replace(end, by="worker")
            answer = ProxyAnswer(
                UNAVAILABLE, _UNREACHED if unreached else _DIED, worker=worker, unexecuted=unreached, by="worker"
            )
        finally:
            now_s = clocks.now()
            end = replace(end, latency_s=now_s - start_s, answering_s=now_s - first_s, received_bytes=read.size_bytes)
            outcome = OF_ABORTED[end.by] if end.by else verdict(-1, end.http_status)
            if outcome[0]:
                end = replace(end, usage=read.usage())
            output_tokens = 0.0 if end.usage is None else end.usage.output
            self._attempts.finished(
                self._arrived, decision, outcome, end.latency_s if not end.by else None, output_tokens
            )
            self._end = end
        return answer

    async def _pass_whole(self, upstream: aiohttp.ClientResponse, body: bytes) -> None:
        if self.response is None:
            self.response = web.Response(status=upstream.status, headers=_passed_down(upstream), body=body)
        else:
            self._attempts.counts["resumed", "refused"] += 1
            await self._break_off(_DIED)

    async def _pass(self, upstream: aiohttp.ClientResponse, events: Iterator[bytes], worker: str) -> None:
        await self._begin(upstream)
        if self._announces:
            # By a comment, which clients leave out: headers are gone by now.
            self._announces = False
            await self._write(f": goes on at worker {worker}\n\n".encode())
        said = self._said
        out = b"".join((event if said is None else said.take(event)) + _BREAK for event in events)
        if out:
            await self._write(out)

    async def _pass_end(self, upstream: aiohttp.ClientResponse, left: bytes) -> None:
        response = await self._begin(upstream)
        if left:
            await self._write(left)
        await self._of_client(response.write_eof())

    async def _begin(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        if self.response is None:
            self.response = web.StreamResponse(status=upstream.status, headers=_passed_down(upstream))
            await self._of_client(self.response.prepare(self._request))
        return self.response

    async def _break_off(self, why: str) -> None:
        assert self.response is not None  # the stream began
        await self._write(_failure(why))
        await self._of_client(self.response.write_eof())

    async def _given_up(self, answer: ProxyAnswer) -> web.StreamResponse:
        if self.response is None:
            self._end = replace(self._end, by=answer.by, http_status=http_status(answer))
            return _refused(answer)
        await self._break_off(answer.details)
        return self.response

    async def _write(self, data: bytes) -> None:
        assert self.response is not None  # the caller prepared it
        await self._of_client(self.response.write(data))

    async def _of_client(self, writing: Any) -> None:
        try:
            await writing
        except (ConnectionError, aiohttp.ClientConnectionError) as error:
            raise _ClientLeftError from error


class _Read:
    """What came of a worker's answer, cut into events."""

    def __init__(self, size_bytes: int) -> None:
        """`size_bytes`: that came before of the same answer."""
        self._reader = AnswerReader()
        self.size_bytes = size_bytes
        self.left = b""
        """That no empty line ended so far."""

    def feed(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self._reader.feed(data)

    def events(self, data: bytes) -> Iterator[bytes]:
        *whole, self.left = (self.left + data).split(_BREAK)
        if len(self.left) > _MOST_EVENT_BYTES:
            raise aiohttp.ClientPayloadError(f"an event has more than {_MOST_EVENT_BYTES} bytes")
        return iter(whole)

    def usage(self) -> Usage:
        return self._reader.usage()


def _passed_up(request: web.BaseRequest) -> list[tuple[str, str]]:
    kept = passed_on((name.lower(), value) for name, value in request.headers.items())
    return [
        # What was compressed is not any more.
        *((name, str(value)) for name, value in kept if name not in {*_OF_CONNECTION, "content-encoding"}),
        ("content-type", request.headers.get("content-type", "application/json")),
        ("accept-encoding", "identity"),  # events are read
    ]


def _passed_down(upstream: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    kept = passed_on((name.lower(), value) for name, value in upstream.headers.items())
    return [
        *((name, str(value)) for name, value in kept if name not in _OF_CONNECTION),
        ("content-type", upstream.headers.get("content-type", "application/json")),
    ]


def _failure(words: str) -> bytes:
    return b"data: " + json.dumps({"error": openai_error(500, words)}).encode() + _BREAK


def _refused(answer: ProxyAnswer) -> web.Response:
    response = _error(http_status(answer), answer.details)
    response.headers.update(retry_headers(answer))
    return response


def _error(status: int, words: str) -> web.Response:
    return web.json_response({"error": openai_error(status, words)}, status=status)
