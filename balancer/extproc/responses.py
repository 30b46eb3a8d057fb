"""What is answered to a pick, as ext_proc messages.

An answer is the concatenation of two serialised parts, which protobuf merges as it parses: one that depends on the
endpoints alone and is kept, and a small one with the number of the decision. Building the whole anew for each request
would cost more than the decision does. And the statuses by which requests end, and what those say of a worker.
"""

import json
import math
from collections.abc import Iterable
from functools import cache, lru_cache
from random import Random
from typing import Literal

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.type.v3 import http_status_pb2
from google.protobuf import struct_pb2

from balancer.discovery.workers import PortName
from balancer.extproc.names import (
    DECISION_NAMESPACE,
    DESTINATION,
    DESTINATION_NAMESPACE,
    LOG_NAMESPACE,
    MAX_RETRIES,
    MODEL_KEY,
    NUMBER_KEY,
    POLICY_KEY,
    PROCESS_KEY,
    RUN_SEPARATOR,
    SPLIT_NAMESPACE,
    VERSION_KEY,
)
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.scheduler.events import Void

# (HTTP status, gRPC status) of each refusal: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
CODES: dict[type[RoutingError], tuple[int, int]] = {
    UnknownModel: (404, 5),
    NoEligibleWorker: (503, 14),
    Shed: (429, 8),
}
ERRORS = {grpc_status: error for error, (_, grpc_status) in CODES.items()}
HTTP_STATUSES = {
    **{grpc_status: http_status for http_status, grpc_status in CODES.values()},
    **{3: 400, 4: 504, 6: 409, 7: 403, 12: 501},
}
"""By gRPC's status, as Triton's HTTP server answers its own errors, and Envoy those of the way; others are 500."""
PUSHBACK, RETRY_AFTER = "grpc-retry-pushback-ms", "retry-after"
"""Trailer of gRPC and header of REST by which clients know when to try again."""
UNSUPPORTED_CODES = (501, 12)
INVALID_CODES = (400, 3)
INTERNAL_CODES = (500, 13)
PUSHBACK_MS = 100
"""Mean time after which a client that was turned away should try again."""
_random = Random()


@lru_cache(maxsize=16_384)  # of some hundred bytes each
def destination(endpoints: tuple[str, ...], once: bool, header: bool) -> bytes:
    """The part that names the endpoints, best first.

    Args:
        endpoints: `address:port` each.
        once: Envoy must not try a second one.
        header: Whether to name them in a header too, which gateways other than ours may go by.
    """
    value = ",".join(endpoints)
    mutation = ext_proc.HeaderMutation()
    if header:
        _set(mutation, DESTINATION, value)
    if once:
        _set(mutation, MAX_RETRIES, "0")
    metadata = struct_pb2.Struct()
    metadata.update({DESTINATION_NAMESPACE: {DESTINATION: value}})
    headers = ext_proc.HeadersResponse(response=ext_proc.CommonResponse(header_mutation=mutation))
    return _bytes(ext_proc.ProcessingResponse(request_headers=headers, dynamic_metadata=metadata))


def decision(process: str, run: str, number: int | None) -> bytes:
    """The part that says who decided what: it comes back in Envoy's access log.

    Args:
        process: Its number, by which Envoy finds the process that is to hear of the outcome.
        run: Tells this run of the process from the ones before, which counted from 0 as well.
        number: Of the decision; None: to refuse.
    """
    if number is None:
        return _decision(process, "")
    digits = b"%d" % number
    before, after = _around_number(process, run, len(digits))
    return before + digits + after


@cache
def _around_number(process: str, run: str, digits: int) -> tuple[bytes, bytes]:
    """What precedes and follows a number of so many digits: protobuf writes lengths, but not what the digits are."""
    start = f"{run}{RUN_SEPARATOR}"
    placeholder = start + "#" * digits
    before, after = _decision(process, placeholder).split(placeholder.encode())
    return before + start.encode(), after


def _decision(process: str, number: str) -> bytes:
    metadata = struct_pb2.Struct()
    fields = metadata.fields[DECISION_NAMESPACE].struct_value.fields
    fields[PROCESS_KEY].string_value = process
    fields[NUMBER_KEY].string_value = number
    return _bytes(ext_proc.ProcessingResponse(dynamic_metadata=metadata))


@lru_cache(maxsize=4096)  # of at most half a kilobyte each
def for_logs(model: str, policy: str) -> bytes:
    """The part that Envoy's audit log and traces tell; an empty text is left out."""
    readable = model.encode(errors="replace").decode()
    metadata = struct_pb2.Struct()
    metadata.update({LOG_NAMESPACE: {k: v for k, v in ((MODEL_KEY, readable), (POLICY_KEY, policy)) if v}})
    return _bytes(ext_proc.ProcessingResponse(dynamic_metadata=metadata))


@lru_cache(maxsize=256)
def version(text: str) -> bytes:
    metadata = struct_pb2.Struct()
    metadata.update({SPLIT_NAMESPACE: {VERSION_KEY: text}})
    return _bytes(ext_proc.ProcessingResponse(dynamic_metadata=metadata))


def path(text: str) -> bytes:
    mutation = ext_proc.HeaderMutation()
    _set(mutation, ":path", text)
    return _of_headers(mutation)


@cache
def of_any_length() -> bytes:
    """The part that has a gateway drop what the client said of its body's length, which is about to change."""
    return _of_headers(ext_proc.HeaderMutation(remove_headers=["content-length"]))


def _of_headers(mutation: ext_proc.HeaderMutation) -> bytes:
    headers = ext_proc.HeadersResponse(response=ext_proc.CommonResponse(header_mutation=mutation))
    return _bytes(ext_proc.ProcessingResponse(request_headers=headers))


@lru_cache(maxsize=16)
def wait(longest_s: float) -> bytes:
    """Asks Envoy to wait so long for the pick, from now on; at most once for each request."""
    message = ext_proc.ProcessingResponse()
    message.override_message_timeout.FromMilliseconds(round(longest_s * 1000))
    return _bytes(message)


def refusal(error: RoutingError, port: PortName) -> bytes:
    http_status, grpc_status = CODES[type(error)]
    wait_s = pushback_ms() / 1000 if isinstance(error, Shed) else 0.0
    return immediate(http_status, grpc_status, str(error), port, wait_s)


def pushback_ms() -> int:
    """When to try again: by chance, as those that are turned away together must not come back together."""
    return _random.randint(PUSHBACK_MS // 2, PUSHBACK_MS // 2 + PUSHBACK_MS)


def immediate(http_status: int, grpc_status: int, message: str, port: PortName, wait_s: float = 0.0) -> bytes:
    """An immediate answer, as those expect it who ask for such a port of a worker: for gRPC a status and its message,
    for REST a JSON body as Triton writes it, or as OpenAI does. `wait_s`: when the client should come again; 0: nothing
    is said of it."""
    response = ext_proc.ImmediateResponse(status=http_status_pb2.HttpStatus(code=http_status))
    response.grpc_status.status = grpc_status
    response.details = "balancer"
    if port == "grpc":
        response.body = message.encode()
    else:
        error = message if port == "http" else openai_error(http_status, message)
        response.body = f'{{"error":{json.dumps(error)}}}'.encode()
        _set(response.headers, "content-type", "application/json")
    if wait_s:
        hint = (PUSHBACK, math.ceil(wait_s * 1000)) if port == "grpc" else (RETRY_AFTER, math.ceil(wait_s))
        _set(response.headers, hint[0], str(hint[1]))
    return _bytes(ext_proc.ProcessingResponse(immediate_response=response))


_OPENAI_ERRORS = {429: "rate_limit_error", 503: "service_unavailable_error"}


def openai_error(http_status: int, message: str) -> dict[str, str | None]:
    kind = _OPENAI_ERRORS.get(http_status, "server_error" if http_status >= 500 else "invalid_request_error")
    code = "model_not_found" if http_status == 404 else None
    return {"message": message, "type": kind, "param": None, "code": code}


def list_of_models(models: Iterable[str]) -> bytes:
    """Answers `/v1/models`."""
    listed = [{"id": model, "object": "model", "created": 0, "owned_by": "balancer"} for model in models]
    response = ext_proc.ImmediateResponse(status=http_status_pb2.HttpStatus(code=200), details="balancer")
    response.body = json.dumps({"object": "list", "data": listed}).encode()
    _set(response.headers, "content-type", "application/json")
    return _bytes(ext_proc.ProcessingResponse(immediate_response=response))


def _bytes(message: ext_proc.ProcessingResponse) -> bytes:
    serialised: bytes = message.SerializeToString()
    return serialised


def _set(mutation: ext_proc.HeaderMutation, name: str, value: str) -> None:
    mutation.set_headers.append(
        base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=name, raw_value=value.encode()),
            append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
    )


Verdict = tuple[bool, Void]
"""Whether the worker did its work, and, where that says nothing of it, who ended the request."""

_ANSWER: Verdict = (True, "")
_FAULT: Verdict = (False, "")
_FAILED_AT_IT: Verdict = (False, "request")
_LATE: Verdict = (False, "deadline")
_CLIENTS: Verdict = (False, "client")
# OK, DEADLINE_EXCEEDED; CANCELLED, UNAVAILABLE, DATA_LOSS; UNKNOWN, INTERNAL: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
OF_GRPC = {0: _ANSWER, 4: _LATE, 1: _FAULT, 14: _FAULT, 15: _FAULT, 2: _FAILED_AT_IT, 13: _FAILED_AT_IT}
OF_HTTP: dict[int, Verdict] = {502: _FAULT, 503: _FAULT, 504: _LATE, 500: _FAILED_AT_IT}
OF_HTTP |= dict.fromkeys(range(200, 300), _ANSWER)
By = Literal["", "client", "worker", "deadline", "gateway"]
"""Who ended a request before its worker had answered it: the worker also for the way to it, the gateway where it had no
room. Empty: nobody did."""
OF_ABORTED: dict[By, Verdict] = {"client": _CLIENTS, "worker": _FAULT, "deadline": _LATE, "gateway": _CLIENTS}
_MOST_DIGITS = 3
_NOT_FOUND_GRPC, _NOT_FOUND_HTTP = 5, 404


def code(text: str, absent: int = -1) -> int:
    """A status of gRPC or HTTP as it stands in a header; `absent` for what is none."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else absent


def verdict(grpc_status: int, http_status: int) -> Verdict:
    """What a status says of the worker that gave it.

    CANCELLED is what a worker answers as it stops: a client that leaves gets no answer, which `By` tells. UNAVAILABLE
    is also what Triton says when its queue is full: that is a fast answer, and a worker that refuses must not look
    better for it than one that serves. INTERNAL, UNKNOWN and 500 may be the worker's fault or the request's (Triton
    answers 500 to JSON that it cannot parse): the router tells them apart by who chose the worker. What the client got
    wrong (INVALID_ARGUMENT, NOT_FOUND, 4xx), and a client that left, say nothing of the worker: taken for answers, they
    would make it look fast. Nor does a deadline that passed.

    Args:
        grpc_status: -1: none is known; then HTTP's decides.
        http_status: 0: none came, since the client left before.
    """
    return OF_GRPC.get(grpc_status, _CLIENTS) if grpc_status >= 0 else OF_HTTP.get(http_status, _CLIENTS)


def of_version(grpc_status: int, http_status: int, by: By = "") -> bool | None:
    """Whether the version of the model that a request got did its work; None: the end says nothing of it.

    Unlike a worker, a version speaks by NOT_FOUND, as it may not be there, and by a deadline that passed.

    Args:
        grpc_status: As in `verdict`.
        http_status: As in `verdict`.
        by: Who ended the request before it was answered.
    """
    if not by and (grpc_status == _NOT_FOUND_GRPC if grpc_status >= 0 else http_status == _NOT_FOUND_HTTP):
        return False
    ok, void = OF_ABORTED[by] if by else verdict(grpc_status, http_status)
    return None if void == "client" else ok
