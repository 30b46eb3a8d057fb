"""The HTTP service: an inference of Triton's REST interface, forwarded as one of gRPC; the answer as Triton writes it:
JSON, and behind it what is wanted as bytes."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from aiohttp import web
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from balancer.bounds import OutOfBoundsError, RefusedInputError, shown
from balancer.channels import restricted
from balancer.channels.restricted import Headers
from balancer.extproc.kserve import rest_call
from balancer.extproc.names import PROXY_HEALTH_PATH
from balancer.proxy.cascading import CascadeStep
from balancer.proxy.inflating import NoRoomError, Room, encoding_of
from balancer.proxy.messages import (
    DTYPES,
    LENGTH_BYTES,
    OK,
    SERVED_MODEL,
    TEXT,
    Metadata,
    ProxyAnswer,
    elements,
    http_status,
    retry_headers,
)
from balancer.proxy.rest.reading import OutputFormat, WantedOutputs, read_request
from balancer.proxy.service import Proxy, RefusedError

_AT_ONCE = 4096
"""Elements that are written in one piece: a few milliseconds."""


class UnwritableError(Exception):
    """An answer that cannot be had in this form; `status` is that of HTTP."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def json_parts(response: service_pb2.ModelInferResponse, wanted: WantedOutputs) -> Iterator[bytes]:
    """The JSON of an answer, in pieces: a large one takes long, and others are to have their turn in between.

    Raises:
        UnwritableError: an output is none that JSON can carry, or does not fit its shape.
    """
    if len(response.raw_output_contents) != len(response.outputs):
        raise UnwritableError(500, "the worker's answer has outputs without their bytes")
    head: dict[str, Any] = {"id": response.id} if response.id else {}
    head |= {"model_name": response.model_name, "model_version": response.model_version}
    if response.parameters:
        head["parameters"] = {name: _value(each) for name, each in response.parameters.items()}
    yield _json(head)[:-1] + b',"outputs":['
    for number, (output, raw) in enumerate(zip(response.outputs, response.raw_output_contents, strict=True)):
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        how = wanted.of(output.name)
        own = {name: _value(each) for name, each in output.parameters.items()}
        if how is OutputFormat.BINARY:
            own["binary_data_size"] = len(raw)
        if own:
            entry["parameters"] = own
        yield (b"," if number else b"") + _json(entry)[:-1]
        if how is OutputFormat.JSON:
            yield b',"data":['
            yield from _data(output, raw)
            yield b"]"
        yield b"}"
    yield b"]}"


def binary_parts(response: service_pb2.ModelInferResponse, wanted: WantedOutputs) -> list[bytes]:
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return [raw for output, raw in pairs if wanted.of(output.name) is OutputFormat.BINARY]


def error_body(words: str) -> bytes:
    return _json({"error": words})


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogateescape")


def _value(parameter: service_pb2.InferParameter) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def _data(output: Any, raw: bytes) -> Iterator[bytes]:
    count = elements(output.shape)
    if count is None:
        raise _misfit(output)
    if output.datatype == TEXT:
        pieces = _texts(output, raw, count)
    elif (dtype := DTYPES.get(output.datatype)) is not None:
        if len(raw) != count * dtype.itemsize:
            raise _misfit(output)
        pieces = _numbers(np.frombuffer(raw, dtype))
    else:
        words = (
            f"sending {output.datatype} data via JSON is not supported. Please use the binary data format for output"
        )
        raise UnwritableError(400, words)
    first = True
    for piece in pieces:
        yield (b"" if first else b",") + _json(piece)[1:-1]
        first = False


def _numbers(array: np.ndarray[Any, Any]) -> Iterator[list[Any]]:
    for at in range(0, len(array), _AT_ONCE):
        # Python's floats are those of 64 bits: one of 32 is written as the same number.
        yield array[at : at + _AT_ONCE].tolist()


def _texts(output: Any, raw: bytes, count: int) -> Iterator[list[str]]:
    at, piece, left = 0, [], count
    while left:
        end = at + LENGTH_BYTES + int.from_bytes(raw[at : at + LENGTH_BYTES], "little")
        if at + LENGTH_BYTES > len(raw) or end > len(raw):
            raise _misfit(output)
        # What is no text goes out as the bytes that it is, as from a Triton.
        piece.append(raw[at + LENGTH_BYTES : end].decode(errors="surrogateescape"))
        at, left = end, left - 1
        if len(piece) == _AT_ONCE or not left:
            yield piece
            piece = []


def _misfit(output: Any) -> UnwritableError:
    return UnwritableError(500, f"output tensor shape does not match size of output for {shown(output.name)}")


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

    def __init__(self, proxy: Proxy, failed: Callable[[Exception], None], *, serves: bool = True) -> None:
        """`failed` is called with an error of ours that cost one request its answer; `serves`: whether there is
        anything to do here."""
        self._proxy, self._failed, self._serves = proxy, failed, serves

    def takes(self, path: str) -> bool:
        return self._serves and (path == PROXY_HEALTH_PATH or path.endswith(_VERB))

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.rel_url.raw_path == PROXY_HEALTH_PATH:
            return web.Response(status=200 if self._proxy.ready else 503)
        if request.method != "POST":
            return _error(405, "Method Not Allowed")
        try:
            return await self._in_room(request)
        except (RefusedError, NoRoomError) as error:
            return _refused(error.answer)
        except UnwritableError as error:
            return _error(error.status, str(error))
        except (ConnectionError, TimeoutError, web.HTTPException):  # of the one that asks
            raise
        except Exception as error:
            self._failed(error)
            return _error(500, "the balancer failed at this request; its log says how")

    async def _in_room(self, request: web.BaseRequest) -> web.Response:
        try:
            compressed = bool(encoding_of(request))
        except OutOfBoundsError as error:
            self._proxy.refuse(error)
        if not compressed:
            return await self._inferred(request)
        async with self._proxy.inflating.room() as room:
            return await self._inferred(request, room)

    async def _inferred(self, request: web.BaseRequest, room: Room | None = None) -> web.Response:
        _, model, version = rest_call(request.rel_url.raw_path)
        try:
            body = await self._proxy.inflating.body(request, room)
            data, wanted = read_request(body, _json_bytes(request), model, version)
        except OutOfBoundsError as error:
            self._proxy.refuse(error)
        del body
        # As a pick reads them. One that gRPC cannot carry counts too: no tenant gets rid of its name by its length.
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.raw_headers
        )
        step = CascadeStep(self._proxy.understand(data, _metadata(headers), None, raw_headers=headers))
        answer = await self._proxy.answer(step)
        if answer.code != OK:
            return _refused(answer)
        response = await _written(answer.data, wanted)
        if step.arrived.cascaded:
            response.headers[SERVED_MODEL] = step.arrived.call.request.model
        return response


def _json_bytes(request: web.BaseRequest) -> int | None:
    length = request.headers.get(_JSON_BYTES)
    if length is None:
        return None
    if not (length.isascii() and length.isdigit() and len(length) <= _DIGITS and int(length)):
        raise RefusedInputError("json", f"Unable to parse {_JSON_BYTES}, got: {length[:_DIGITS]!a}")
    return int(length)


def _metadata(headers: Headers) -> Metadata:
    kept = tuple(
        (name, value)
        for name, value in headers
        if not name.startswith(_NOT_PASSED_ON) and restricted.can_go(name, value)
    )
    copies = restricted.as_grpc(restricted.of_http(kept))
    copied_bytes = sum(len(name) + len(value) for name, value in copies)
    return (*kept, *copies) if copied_bytes <= _MOST_COPIED_BYTES else kept


async def _written(data: bytes, wanted: WantedOutputs) -> web.Response:
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


def _refused(answer: ProxyAnswer) -> web.Response:
    response = _error(http_status(answer), answer.details)
    response.headers.update(retry_headers(answer))
    return response


def _error(status: int, words: str) -> web.Response:
    return web.Response(status=status, body=error_body(words), content_type=_JSON_TYPE)
