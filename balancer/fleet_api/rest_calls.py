"""Calls about the fleet by HTTP: the paths of Triton's interface that concern it, and their answers.

A change goes to workers as the message of gRPC that it is there.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import aiohttp
import grpc
from aiohttp import web
from google.protobuf.message import Message

from balancer.bounds import OutOfBoundsError
from balancer.channels import restricted
from balancer.channels.channels import RestPorts, UnknownWorkerError
from balancer.extproc.kserve import CHANGES, SETTINGS
from balancer.extproc.names import FLEET_HEALTH_PATH, MISSING_HEADER, PRINCIPAL_HEADER
from balancer.fleet_api import fan_out
from balancer.fleet_api.control import Control
from balancer.fleet_api.fan_out import REQUESTS, FailedError, Failure, FleetCallCounts, plain
from balancer.fleet_api.questions import Question, Questions

Plain = Any
_FILE = "file:"


def refused(words: str) -> FailedError:
    return FailedError(Failure(grpc.StatusCode.INVALID_ARGUMENT, words))


def read_object(body: bytes) -> dict[str, Plain]:
    """A body, which may be empty."""
    if not body.strip():
        return {}
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise refused(f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(content, dict):
        raise refused("failed to parse the request JSON buffer: it is no object")
    return content


def request_of(call: str, name: str, body: bytes) -> Message:
    """The message of a change.

    Raises:
        FailedError: the body does not fit; the words say which member.
    """
    content = read_object(body)
    request = REQUESTS[call]()
    try:
        _FILLED[call](request, name, content)
    except (ValueError, TypeError, AttributeError, KeyError, binascii.Error, OverflowError) as error:
        # The messages know the types, so what they refuse is what does not fit.
        raise refused(f"{call}: its JSON does not fit: {error}") from error
    return request


def _repository(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.model_name = name
    for key, value in content.get("parameters", {}).items():
        parameter = request.parameters[key]
        if key.startswith(_FILE):
            parameter.bytes_param = base64.b64decode(value, validate=True)
        elif isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        else:
            parameter.string_param = value


def _log(request: Any, _: str, content: Mapping[str, Plain]) -> None:
    for key, value in content.items():
        if isinstance(value, bool):
            request.settings[key].bool_param = value
        elif isinstance(value, int):
            request.settings[key].uint32_param = value
        else:
            request.settings[key].string_param = value


def _trace(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.model_name = name
    for key, value in content.items():
        # Without a value, the model's goes back to the server's.
        request.settings[key].SetInParent()
        if value is not None:
            request.settings[key].value.extend(value if isinstance(value, list) else [value])


def _system(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.name, request.key, request.byte_size = name, content["key"], content["byte_size"]
    request.offset = content.get("offset", 0)


def _cuda(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.raw_handle = base64.b64decode(content["raw_handle"]["b64"], validate=True)
    request.name, request.device_id, request.byte_size = name, content["device_id"], content["byte_size"]


def _unregister(request: Any, name: str, _: Mapping[str, Plain]) -> None:
    request.name = name


_FILLED: Mapping[str, Callable[[Any, str, Mapping[str, Plain]], None]] = {
    "RepositoryModelLoad": _repository,
    "RepositoryModelUnload": _repository,
    "LogSettings": _log,
    "TraceSetting": _trace,
    "SystemSharedMemoryRegister": _system,
    "CudaSharedMemoryRegister": _cuda,
    "SystemSharedMemoryUnregister": _unregister,
    "CudaSharedMemoryUnregister": _unregister,
}


def answer_of(call: str, message: Message) -> bytes:
    if call == "LogSettings":
        settings = plain(message)["settings"]
        return written({key: next(iter(value.values()), None) for key, value in settings.items()})
    if call == "TraceSetting":
        settings = plain(message)["settings"]
        return written({key: _of_trace(key, value["value"]) for key, value in settings.items()})
    return b""


def _of_trace(key: str, values: list[str]) -> Plain:
    return values if key == "trace_level" else next(iter(values), "")


def written(content: Plain) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


_MODEL = r"/v2/models/(?P<model>[^/]+)"
_MEMORY = r"/v2/(?P<kind>system|cuda)sharedmemory(/region/(?P<region>[^/]+))?"
_CALLS = {
    r"/v2": ("GET", "ServerMetadata"),
    r"/v2/health/live": ("GET", "ServerLive"),
    r"/v2/health/ready": ("GET", "ServerReady"),
    r"/v2/models/stats": ("GET", "ModelStatistics"),
    r"/v2/repository/index": ("POST", "RepositoryIndex"),
    r"/v2/logging": ("GET|POST", "LogSettings"),
    rf"(/v2|{_MODEL})/trace/setting": ("GET|POST", "TraceSetting"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?": ("GET", "ModelMetadata"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?/ready": ("GET", "ModelReady"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?/config": ("GET", "ModelConfig"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?/stats": ("GET", "ModelStatistics"),
    r"/v2/repository/models/(?P<model>[^/]+)/load": ("POST", "RepositoryModelLoad"),
    r"/v2/repository/models/(?P<model>[^/]+)/unload": ("POST", "RepositoryModelUnload"),
    rf"{_MEMORY}/status": ("GET", "SharedMemoryStatus"),
    rf"{_MEMORY}/register": ("POST", "SharedMemoryRegister"),
    rf"{_MEMORY}/unregister": ("POST", "SharedMemoryUnregister"),
}
_PATTERNS = tuple((re.compile(pattern), *call) for pattern, call in _CALLS.items())


class PathCall(NamedTuple):
    method: str
    verbs: str
    name: str
    """The model or shared-memory region that the path names; empty: none."""
    version: str = ""


def read_path(path: str) -> PathCall | None:
    """What a path asks for; None: nothing that is known."""
    decoded = unquote(path, errors="surrogateescape")
    if decoded.count("/") != path.count("/") or not decoded.isprintable():
        return None
    for pattern, methods, call in _PATTERNS:
        if match := pattern.fullmatch(decoded):
            found = match.groupdict()
            kind = found.get("kind")
            named = f"{kind.title()}{call}" if kind else call
            return PathCall(named, methods, found.get("model") or found.get("region") or "", found.get("version") or "")
    return None


class RestCalls:
    """Answers one request after the other on any number of connections, which are Envoy's."""

    def __init__(
        self,
        questions: Questions,
        control: Control,
        workers: RestPorts,
        counts: FleetCallCounts,
        known: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        """`known` as in `GrpcCalls`; `failed` is called with an error of ours that cost one request its answer."""
        self._questions = questions
        self._control = control
        self._workers = workers
        self._counts = counts
        self._known = known
        self._failed = failed

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if path == FLEET_HEALTH_PATH:
            return web.Response(status=200 if self._known() else 503)
        call = read_path(path)
        if call is None:
            return _error(404, "Not Found")
        if request.method not in call.verbs.split("|"):
            return _error(405, "Method Not Allowed")
        return await self._counted(call, request)

    async def _counted(self, call: PathCall, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response, result = await self._answered(call, request), "answered"
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
            response, result = _error(500, "the balancer failed at this call; its log says how"), "internal_error"
        self._counts.calls.labels(call.method, result).inc()
        return response

    async def _answered(self, call: PathCall, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            return _error(415, "a body of a call about the fleet may not be compressed")
        changes = call.method in CHANGES or (call.method in SETTINGS and request.method == "POST")
        headers = restricted.of_http(request.headers.items())
        if changes:
            principal = request.headers.get(PRINCIPAL_HEADER, "")
            return await self._change(call, body, principal, headers)
        if call.method == "ServerLive":
            return web.Response()
        if call.method == "RepositoryIndex":
            ready = read_object(body).get("ready", False)
            if not isinstance(ready, bool):
                return _error(400, "ready: is true or false")
        else:
            ready = False
        question = Question(
            call.method, "rest", self._asker(call, request, headers), call.name, call.version, ready, headers
        )
        answer = await self._questions.answer(question)
        response = _written(call.method, answer.content)
        if answer.missing:
            response.headers[MISSING_HEADER] = ",".join(answer.missing)[:1024]
        return response

    async def _change(self, call: PathCall, body: bytes, principal: str, headers: restricted.Headers) -> web.Response:
        # Callers who may not are refused whatever the body says.
        self._control.admit(call.method, principal)
        change = request_of(call.method, call.name, body)
        message = await self._control.change(call.method, change, principal, restricted.as_grpc(headers))
        return web.Response(body=answer_of(call.method, message), content_type="application/json")

    def _asker(
        self, call: PathCall, request: web.BaseRequest, headers: restricted.Headers
    ) -> Callable[[str], Awaitable[Any]]:
        method, path = request.method, request.rel_url.raw_path
        # The index is asked for whole.
        body = b"{}" if method == "POST" else b""

        async def ask(worker: str) -> Any:
            try:
                answer = await self._workers.ask(worker, method, path, body, dict(headers))
            except UnknownWorkerError as error:
                raise fan_out.gone(worker) from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                failure = Failure(grpc.StatusCode.UNAVAILABLE, f"{worker} does not answer: {error}")
                raise FailedError(failure) from error
            return _read(call.method, answer.status, answer.body)

        return ask


def _read(call: str, status: int, body: bytes) -> Any:
    if (call == "ServerReady" and status != 404) or (call == "ModelReady" and status in (200, 400)):
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
        return web.Response(
            status=200 if content["ready"] else 400, body=content.get("body", b""), content_type="text/plain"
        )
    if call.endswith("SharedMemoryStatus"):
        content = list(content.values())
    return web.Response(body=written(content), content_type="application/json")


def _failure(failure: Failure) -> web.Response:
    body = written({"error": failure.words}) if failure.body is None else failure.body
    return web.Response(status=failure.http_status, body=body, content_type="application/json")


def _error(status: int, words: str) -> web.Response:
    return web.Response(status=status, body=written({"error": words}), content_type="application/json")
