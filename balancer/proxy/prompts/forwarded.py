"""One request of OpenAI's API at its workers, and its answer as it comes, event by event."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from balancer.channels.channels import RestPorts, UnknownWorkerError, whole_answer
from balancer.extproc.kserve import Call
from balancer.extproc.names import NOT_EXECUTED_TEXTS
from balancer.extproc.prompts import AnswerReader, Usage
from balancer.extproc.responses import INTERNAL_CODES, OF_ABORTED, By, Verdict, of_version, openai_error, verdict
from balancer.files.answers import EVENT_BREAK, EventSplitter, TooLongError
from balancer.proxy.attempts import Attempts, Clocks
from balancer.proxy.messages import (
    INTERNAL,
    UNAVAILABLE,
    UNREACHED,
    Arrived,
    ProxyAnswer,
    http_status,
    passed_on,
    retry_headers,
)
from balancer.proxy.prompts.generated import Generated, WorkerError, triton_error
from balancer.proxy.prompts.said import Said
from balancer.proxy.tenants import TenantLimits
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.canary.split import VersionDraw
from balancer.scheduler.errors import RoutingError

_DIED = "the worker that answered has failed; ask again"
_UNREACHABLE = aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, UnknownWorkerError
_STREAM_TYPE = "text/event-stream"
_OF_CONNECTION = frozenset(("connection", "keep-alive", "transfer-encoding", "upgrade", "expect", "server", "date"))
"""Beside those that `passed_on` leaves out."""
_MOST_EVENT_BYTES = 2**22
_ERRORS = 400


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """How a client's request ended, however many workers were asked."""

    http_status: int
    """0: none came."""
    by: By
    worker: str = ""
    """Name of the worker that the request was sent to last; empty before the first attempt."""
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


class ClientLeftError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Means:
    """What all requests have in common."""

    attempts: Attempts
    openai: RestPorts
    """Calls the workers that speak OpenAI's API."""
    tritons: RestPorts
    listener: PromptListener
    clocks: Clocks
    compare: Callable[[VersionDraw | None, float, bool | None], None]
    """As `Proxy.compare`."""
    tenants: TenantLimits


class Forwarded:
    def __init__(
        self,
        means: Means,
        request: web.BaseRequest,
        arrived: Arrived,
        said: Said | Generated | None,
        *,
        resumes: bool,
        let_go: Callable[[], None],
    ) -> None:
        """
        Args:
            means: To answer it.
            request: As it came.
            arrived: The same, understood, as a worker gets it.
            said: What the answer says so far; None: nobody needs that. `Generated`: the workers are Tritons.
            resumes: Whether another worker may go on where one died.
            let_go: Called once the body is not needed any more; or else the caller does at the end.
        """
        self._let_go, self._means, self._request = let_go, means, request
        self._arrived, self._said, self._resumes = arrived, said, resumes
        self._headers = _passed_up(request)
        self._generated = said if isinstance(said, Generated) else None
        if self._generated is None:
            self._ports, self._path = means.openai, request.rel_url.raw_path_qs
        else:
            self._ports, self._path = means.tritons, self._generated.path(arrived.call.request.version)
        self.response: web.StreamResponse | None = None
        """None: its client was told nothing so far."""
        self._announces = False
        """Another worker is asked for the rest, and people are to be told."""
        self._end = PromptEnd(0, "client")
        self._used = Usage(0.0, 0.0, 0.0)
        """By all workers that were asked."""

    async def run(self) -> web.StreamResponse:
        try:
            return await self._run()
        finally:
            end = self._end
            self._means.listener.answered_prompt(self._arrived, end)
            good = of_version(-1, end.http_status, end.by) if end.worker else None
            self._means.compare(self._arrived.draw, end.latency_s, good)
            answered, left = end.usage is not None, end.by == "client" and bool(end.worker)
            used = self._used
            self._means.tenants.settle(self._arrived.call, used.prompt, used.output, answered=answered, left=left)

    async def _run(self) -> web.StreamResponse:
        tried: set[str] = set()
        last: ProxyAnswer | None = None
        while True:
            try:
                decision = await self._means.attempts.place(self._arrived, tried)
            except RoutingError as error:
                if self.response is not None:
                    self._means.attempts.counts["resumed", "no_worker"] += 1
                return await self._given_up(last or self._means.attempts.refused(error))
            tried.add(decision.worker)
            last = await self._with(decision)
            if last is None:
                assert self.response is not None  # all of it was passed on
                return self.response
            # A body that was let go cannot be sent again: its worker has begun to answer.
            again = self.response is None and self._arrived.data
            if again and await self._means.attempts.may_go_on(self._arrived, last, len(tried), tried):
                continue
            if not self._goes_on(last):
                return await self._given_up(last)

    def _goes_on(self, broken: ProxyAnswer) -> bool:
        """Whether another worker is to be asked for the rest."""
        if not self._resumes or self._said is None or broken.unexecuted or not self._arrived.call.streams_tokens:
            return False
        rest = self._said.rest()
        self._means.attempts.counts["resumed", "impossible" if rest is None else "made"] += 1
        if rest is None:
            return False
        self._arrived = replace(self._arrived, data=rest)
        self._announces = self.response is not None
        return True

    async def _with(self, decision: Decision) -> ProxyAnswer | None:
        """Ask the worker that was decided on; None: its answer was passed on, whole."""
        clocks, worker = self._means.clocks, decision.worker
        read, start_s, first_s = _Read(self._end.received_bytes), clocks.now(), math.nan
        end = PromptEnd(0, "client", worker, decision.policy, sent_bytes=len(self._arrived.data))
        answer: ProxyAnswer | None = None
        try:
            async with self._ports.open(worker, "POST", self._path, self._arrived.data, self._headers) as upstream:
                end = replace(end, http_status=upstream.status)
                if upstream.content_type != _STREAM_TYPE:
                    body = await whole_answer(upstream)
                    read.feed(body)
                    end = replace(end, by="")
                    if self._generated is None:
                        await self._pass_whole(upstream, body)
                    else:
                        answer = await self._refused(upstream.status, body, worker)
                else:
                    self._arrived = replace(self._arrived, data=b"")
                    if not self._resumes:
                        self._forget()
                    async for chunk in upstream.content.iter_any():
                        if math.isnan(first_s):
                            first_s = clocks.now()
                            self._means.listener.first_token(self._arrived.call, decision)
                        read.feed(chunk)
                        await self._pass(upstream, read.splitter.split(chunk), worker)
                        if self._generated is not None and self._generated.ended:
                            break
                    end = replace(end, by="")
                    await self._pass_end(upstream, read.splitter.left)
        except WorkerError as error:
            end = replace(end, by="", http_status=INTERNAL_CODES[0])
            await self._given_up(ProxyAnswer(INTERNAL, str(error)))
        except (aiohttp.ClientError, UnknownWorkerError, TimeoutError, TooLongError) as error:
            unreached = isinstance(error, _UNREACHABLE)
            end = replace(end, by="worker")
            answer = ProxyAnswer(
                UNAVAILABLE, UNREACHED if unreached else _DIED, worker=worker, unexecuted=unreached, by="worker"
            )
        finally:
            now_s = clocks.now()
            end = replace(end, latency_s=now_s - start_s, answering_s=now_s - first_s, received_bytes=read.size_bytes)
            outcome = OF_ABORTED[end.by] if end.by else verdict(-1, end.http_status)
            used = read.usage() if self._generated is None else self._generated.usage()
            before = self._used.output if self._generated is None else 0.0
            self._used = Usage(max(self._used.prompt, used.prompt), 0.0, before + used.output)
            if outcome[0]:
                end = replace(end, usage=used)
            self._told(decision, outcome, end)
            self._end = end
        return answer

    def _told(self, decision: Decision, outcome: Verdict, end: PromptEnd) -> None:
        _, cached, output = end.usage or Usage(0.0, 0.0, 0.0)
        latency_s = end.latency_s if not end.by else None
        self._means.attempts.finished(self._arrived, decision, outcome, latency_s, output, cached_tokens=cached)

    def _forget(self) -> None:
        self._let_go()
        if self._generated is not None:
            self._generated.forget()

    async def _refused(self, status: int, body: bytes, worker: str) -> ProxyAnswer | None:
        """A Triton refused; None: its client was told."""
        words = triton_error(body)
        if any(text in words for text in NOT_EXECUTED_TEXTS):
            return ProxyAnswer(UNAVAILABLE, words, worker=worker, unexecuted=True)
        # Of an answer that is no stream there is nothing to pass on.
        response = error_response(status if status >= _ERRORS else INTERNAL_CODES[0], words)
        if self.response is None:
            self.response = response
        else:
            await self._break_off(words)
        return None

    async def _pass_whole(self, upstream: aiohttp.ClientResponse, body: bytes) -> None:
        if self.response is None:
            self.response = web.Response(status=upstream.status, headers=_passed_down(upstream), body=body)
        else:
            self._means.attempts.counts["resumed", "refused"] += 1
            await self._break_off(_DIED)

    async def _pass(self, upstream: aiohttp.ClientResponse, events: Iterable[bytes], worker: str) -> None:
        said = self._said
        if isinstance(said, Generated):
            # One by one: an error takes nothing away that stands before it.
            for event in events:
                if (out := said.take(event)) and said.streamed:
                    await self._say(upstream, out, worker)
        else:
            out = b"".join((event if said is None else said.take(event)) + EVENT_BREAK for event in events)
            await self._say(upstream, out, worker)

    async def _say(self, upstream: aiohttp.ClientResponse, out: bytes, worker: str) -> None:
        await self._begin(upstream)
        if self._announces:
            # By a comment, which clients leave out: headers are gone by now.
            self._announces = False
            await self._write(f": goes on at worker {worker}\n\n".encode())
        if out:
            await self._write(out)

    async def _pass_end(self, upstream: aiohttp.ClientResponse, left: bytes) -> None:
        generated = self._generated
        if generated is not None and not generated.streamed:
            self.response = web.json_response(generated.whole())
            return
        response = await self._begin(upstream)
        if out := left if generated is None else generated.end():
            await self._write(out)
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
            self.response = refusal_response(answer)
            return self.response
        await self._break_off(answer.details)
        return self.response

    async def _write(self, data: bytes) -> None:
        assert self.response is not None  # the caller prepared it
        await self._of_client(self.response.write(data))

    async def _of_client(self, writing: Any) -> None:
        try:
            await writing
        except (ConnectionError, aiohttp.ClientConnectionError) as error:
            raise ClientLeftError from error


class _Read:
    """What came of a worker's answer, cut into events."""

    def __init__(self, size_bytes: int) -> None:
        """`size_bytes`: that came before of the same answer."""
        self._reader = AnswerReader()
        self.size_bytes = size_bytes
        self.splitter = EventSplitter(_MOST_EVENT_BYTES)

    def feed(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self._reader.feed(data)

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
    return b"data: " + json.dumps({"error": openai_error(500, words)}).encode() + EVENT_BREAK


def refusal_response(answer: ProxyAnswer) -> web.Response:
    response = error_response(http_status(answer), answer.details)
    response.headers.update(retry_headers(answer))
    return response


def error_response(status: int, words: str) -> web.Response:
    return web.json_response({"error": openai_error(status, words)}, status=status)
