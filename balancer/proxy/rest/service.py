"""The HTTP service: an inference of Triton's REST interface, forwarded as one of gRPC."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from balancer.core.bounds import OutOfBoundsError, shown
from balancer.gateway.kserve import rest_call
from balancer.gateway.names import PROXY_HEALTH_PATH
from balancer.gateway.responses import HTTP_STATUSES
from balancer.proxy.cascading import Step
from balancer.proxy.messages import OK, PUSHBACK, SERVED_MODEL, Answer, Metadata
from balancer.proxy.rest.reading import UnreadableError, Wanted, read_request
from balancer.proxy.rest.writing import UnwritableError, binary_parts, error_body, json_parts
from balancer.proxy.service import Proxy, RefusedError
from balancer.workers import restricted

_JSON_BYTES = "Inference-Header-Content-Length"
"""Header of requests and answers: how many bytes of the body are JSON, where tensors follow as they are."""
_DIGITS = 12
_NOT_PASSED_ON = (
    "content-",
    "accept",
    "inference-header-",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "upgrade",
    "expect",
)
"""Begin the names of headers that say how a request is written or sent, and so concern no worker."""
_MOST_COPIED_BYTES = 2048
"""Of headers in a second form: with the 5 KiB that Envoy lets through, less than a worker's server refuses."""
_VERB = "/infer"
_JSON_TYPE, _BYTES_TYPE = "application/json", "application/octet-stream"
_UNREADABLE = "a worker's answer is no message"


class Rest:
    """Answers one request after the other on any number of connections, which are Envoy's."""

    def __init__(
        self, proxy: Proxy, most_bytes: int, failed: Callable[[Exception], None], *, serves: bool = True
    ) -> None:
        """`most_bytes`: of a request's body; `failed` is told of a mistake of ours, which cost one request its answer;
        `serves`: whether there is anything to do here."""
        self._proxy, self._most_bytes, self._failed, self._serves = proxy, most_bytes, failed, serves

    def takes(self, path: str) -> bool:
        """Whether requests for this path are answered here."""
        return self._serves and (path == PROXY_HEALTH_PATH or path.endswith(_VERB))

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to a request for such a path."""
        if request.rel_url.raw_path == PROXY_HEALTH_PATH:
            return web.Response(status=200 if self._proxy.ready else 503)
        if request.method != "POST":
            return _error(405, "Method Not Allowed")
        try:
            return await self._inferred(request)
        except RefusedError as error:
            return _refused(error.answer)
        except UnwritableError as error:
            return _error(error.status, str(error))
        except (ConnectionError, TimeoutError, web.HTTPException):  # of the one that asks
            raise
        except Exception as error:
            self._failed(error)
            return _error(500, "the balancer failed at this request; its log says how")

    async def _inferred(self, request: web.BaseRequest) -> web.Response:
        _, model, version = rest_call(request.rel_url.raw_path)
        try:
            body = await self._read(request)
            data, wanted = read_request(body, _json_bytes(request), model, version)
        except OutOfBoundsError as error:
            self._proxy.refuse(error)
        del body
        step = Step(self._proxy.understand(data, _metadata(request), None))
        answer = await self._proxy.answer(step)
        if answer.code != OK:
            return _refused(answer)
        response = await _written(answer.data, wanted)
        if step.arrived.cascaded:
            response.headers[SERVED_MODEL] = step.arrived.call.request.model
        return response

    async def _read(self, request: web.BaseRequest) -> bytes:
        parts, size = [], 0
        try:
            async for part in request.content.iter_any():
                size += len(part)
                if size > self._most_bytes:
                    words = f"the request has more than {self._most_bytes} bytes; send a smaller one"
                    raise UnreadableError("size", words)
                parts.append(part)
        except web.RequestPayloadError as error:
            encoding = request.headers.get("content-encoding", "none")
            raise UnreadableError(
                "encoding", f"the request's body is not of its encoding, {shown(encoding)}"
            ) from error
        return b"".join(parts)


def _json_bytes(request: web.BaseRequest) -> int | None:
    """How many bytes of the body are JSON; None: all."""
    told = request.headers.get(_JSON_BYTES)
    if told is None:
        return None
    if not (told.isascii() and told.isdigit() and len(told) <= _DIGITS and int(told)):
        raise UnreadableError("json", f"Unable to parse {_JSON_BYTES}, got: {told[:_DIGITS]!a}")
    return int(told)


def _metadata(request: web.BaseRequest) -> Metadata:
    """The headers that go on to a worker, and those by which it may restrict calls."""
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    kept = tuple(
        (name, value)
        for name, value in headers
        if not name.startswith(_NOT_PASSED_ON) and restricted.can_go(name, value)
    )
    copies = restricted.as_grpc(restricted.of_http(kept))
    copied_bytes = sum(len(name) + len(value) for name, value in copies)
    return (*kept, *copies) if copied_bytes <= _MOST_COPIED_BYTES else kept


async def _written(data: bytes, wanted: Wanted) -> web.Response:
    """An answer as its client wants it."""
    try:
        message = service_pb2.ModelInferResponse.FromString(data)
    except DecodeError as error:
        raise UnwritableError(502, _UNREADABLE) from error
    parts = []
    for part in json_parts(message, wanted):
        parts.append(part)
        # Others have their turn before the next piece of a large tensor.
        await asyncio.sleep(0)
    binary = binary_parts(message, wanted)
    headers = {_JSON_BYTES: str(sum(map(len, parts)))} if binary else {}
    return web.Response(
        body=b"".join((*parts, *binary)), headers=headers, content_type=_BYTES_TYPE if binary else _JSON_TYPE
    )


def _refused(answer: Answer) -> web.Response:
    """A failure as Triton writes it, with the time to come again where there is one."""
    status = restricted.status_of(answer.details) or HTTP_STATUSES.get(answer.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    response = _error(status, answer.details)
    wait_ms = next((value for name, value in answer.trailing if name == PUSHBACK), None)
    if wait_ms is not None:
        response.headers["retry-after"] = str(math.ceil(int(wait_ms) / 1000))
    return response


def _error(status: int, words: str) -> web.Response:
    return web.Response(status=status, body=error_body(words), content_type=_JSON_TYPE)
