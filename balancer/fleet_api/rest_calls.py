"""Calls about the fleet by HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import grpc
from aiohttp import web

from balancer.core.bounds import OutOfBoundsError
from balancer.fleet import ports
from balancer.fleet.asking import FailedError, Failure
from balancer.fleet.changes import answer_of, read_object, request_of, written
from balancer.fleet.control import Control
from balancer.fleet.counts import Counts
from balancer.fleet.paths import Asked, asked_by
from balancer.fleet.questions import Question, Questions
from balancer.gateway.names import FLEET_HEALTH_PATH, MISSING_HEADER, PRINCIPAL_HEADER
from balancer.workers import restricted
from balancer.workers.channels import UnknownWorkerError
from balancer.workers.rest import RestPorts

_CHANGES = ("Load", "Unload", "Register", "Unregister")
_SETTINGS = ("TraceSetting", "LogSettings")


class RestCalls:
    """Answers one request after the other on any number of connections, which are Envoy's."""

    def __init__(
        self,
        questions: Questions,
        control: Control,
        workers: RestPorts,
        counts: Counts,
        known: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        """`known` as in `GrpcCalls`; `failed` is told of a mistake of ours, which cost one request its answer."""
        self._questions = questions
        self._control = control
        self._workers = workers
        self._counts = counts
        self._known = known
        self._failed = failed

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to any request."""
        path = request.rel_url.raw_path
        if path == FLEET_HEALTH_PATH:
            return web.Response(status=200 if self._known() else 503)
        asked = asked_by(path)
        if asked is None:
            return _error(404, "Not Found")
        if request.method not in asked.methods.split("|"):
            return _error(405, "Method Not Allowed")
        return await self._counted(asked, request)

    async def _counted(self, asked: Asked, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response, result = await self._answered(asked, request), "answered"
        except FailedError as error:
            response, result = _failure(error.failure), "failed"
        except OutOfBoundsError as error:
            response, result = _error(400, str(error)), "invalid"
        except web.HTTPRequestEntityTooLarge as error:
            response, result = _error(413, str(error.text)), "invalid"
        except (ConnectionError, TimeoutError):  # of the one that asks
            raise
        except Exception as error:
            self._failed(error)
            response, result = _error(500, "the balancer failed at this call; its log says how"), "mistake"
        self._counts.calls.labels(asked.call, result).inc()
        return response

    async def _answered(self, asked: Asked, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        changes = asked.call.endswith(_CHANGES) or (asked.call in _SETTINGS and request.method == "POST")
        headers = restricted.of_http(request.headers.items())
        if changes:
            principal = request.headers.get(PRINCIPAL_HEADER, "")
            return await self._change(asked, body, principal, headers)
        if asked.call == "ServerLive":
            return web.Response()
        if asked.call == "RepositoryIndex":
            ready = read_object(body).get("ready", False)
            if not isinstance(ready, bool):
                return _error(400, "ready: is true or false")
        else:
            ready = False
        question = Question(
            asked.call, "rest", self._asks(asked, request, headers), asked.name, asked.version, ready, headers
        )
        told = await self._questions.answer(question)
        response = _written(asked.call, told.content)
        if told.missing:
            response.headers[MISSING_HEADER] = ",".join(told.missing)[:1024]
        return response

    async def _change(self, asked: Asked, body: bytes, principal: str, headers: restricted.Headers) -> web.Response:
        # Who may not is told so, whatever the body says.
        self._control.admit(asked.call, principal)
        change = request_of(asked.call, asked.name, body)
        message = await self._control.change(asked.call, change, principal, restricted.as_grpc(headers))
        return web.Response(body=answer_of(asked.call, message), content_type="application/json")

    def _asks(
        self, asked: Asked, request: web.BaseRequest, headers: restricted.Headers
    ) -> Callable[[str], Awaitable[Any]]:
        method, path = request.method, request.rel_url.raw_path
        # The index is asked for whole.
        body = b"{}" if method == "POST" else b""

        async def ask(worker: str) -> Any:
            try:
                answer = await self._workers.ask(worker, method, path, body, dict(headers))
            except UnknownWorkerError as error:
                raise ports.gone(worker) from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                failure = Failure(grpc.StatusCode.UNAVAILABLE, f"{worker} does not answer: {error}")
                raise FailedError(failure) from error
            return _read(asked.call, answer.status, answer.body)

        return ask


def _read(call: str, status: int, body: bytes) -> Any:
    """A worker's answer as plain data."""
    if call == "ServerReady" or (call == "ModelReady" and status in (200, 400)):
        return {"ready": status == 200, "body": body}
    try:
        content = json.loads(body)
        if status == 200:
            return {region["name"]: region for region in content} if call.endswith("SharedMemoryStatus") else content
        words = str(content["error"])
    except (ValueError, RecursionError, KeyError, TypeError):
        words = f"a worker answered {status}, and no JSON of Triton's"
        body = written({"error": words})
    raise FailedError(Failure.of_status(502 if status == 200 else status, words, body))


def _written(call: str, content: Any) -> web.Response:
    if call == "ServerReady":
        return web.Response(status=200 if content["ready"] else 400)
    if call == "ModelReady":
        return web.Response(status=200 if content["ready"] else 400, body=content["body"], content_type="text/plain")
    if call.endswith("SharedMemoryStatus"):
        content = list(content.values())
    return web.Response(body=written(content), content_type="application/json")


def _failure(failure: Failure) -> web.Response:
    body = written({"error": failure.words}) if failure.body is None else failure.body
    return web.Response(status=failure.http_status, body=body, content_type="application/json")


def _error(status: int, words: str) -> web.Response:
    return web.Response(status=status, body=written({"error": words}), content_type="application/json")
