"""What a message asks of the listener, and what its answer means for it."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from balancer.bounds import OutOfBoundsError
from balancer.files.answers import TooLongError, whole_body
from balancer.ingress.events import Execution
from balancer.ingress.grpc_caller import INFER_PATH, PROTOBUF, GrpcCaller, model_of
from balancer.ingress.message import EXECUTION_HEADER, ID_HEADER, MAX_ID_BYTES, NO_ID, Message
from balancer.ingress.outcomes import (
    LATE,
    MAX_ANSWER_BYTES,
    MAX_CALL_S,
    MAX_REASON_BYTES,
    Answer,
    Failure,
    broken,
    refusal,
    unreached,
)

DEADLINE_HEADER = "x-deadline-ms"
MODEL_HEADER, VERSION_HEADER, PATH_HEADER = "x-model", "x-model-version", "x-path"
FORWARDED = frozenset(
    (
        "accept",
        "content-type",
        "inference-header-content-length",
        "traceparent",
        "tracestate",
        "x-batch-rows",
        "x-gateway-inference-objective",
        "x-priority",
        "x-repeatable",
        "x-routing-key",
        "x-sequence-id",
        "x-tenant",
    )
)
"""Headers of a message that the listener gets as they are. No other, so a message cannot speak for somebody else."""
RETURNED = ("content-type", "inference-header-content-length", "traceparent")
_OPENAI = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/embeddings"}
"""The path by the member that only its bodies have."""
_VALUE = re.compile(r"[ -~]{0,1024}")


class UnservableError(ValueError):
    """No worker can serve this message, ever; the message says why."""


@dataclass(frozen=True, slots=True)
class Call:
    path: str
    model: str
    headers: Mapping[str, str]


def call_of(message: Message, model: str = "") -> Call:
    """What it asks for; `model` where it names none.

    Raises:
        UnservableError: its id, headers or body ask for nothing that there is.
    """
    if message.id.startswith(NO_ID):
        raise UnservableError(f"its id is none: give 1 to {MAX_ID_BYTES} printable ASCII characters, no blanks")
    given = message.headers
    for name, value in given.items():
        if (name in FORWARDED or name.startswith("x-")) and not _VALUE.fullmatch(value):
            raise UnservableError(f"header {name}: give at most 1024 printable ASCII characters")
    headers = {name: value for name, value in given.items() if name in FORWARDED} | {ID_HEADER: message.id}
    headers.setdefault("content-type", "application/json")
    if headers["content-type"] == PROTOBUF:
        return Call(INFER_PATH, _protobuf_model(message.body), headers)
    path, named = given.get(PATH_HEADER, ""), given.get(MODEL_HEADER, "")
    if path in _OPENAI.values() or (not path and not named):
        openai_path, asked = _openai(message.body)
        if not _VALUE.fullmatch(asked):
            raise UnservableError("member model: give at most 1024 printable ASCII characters")
        if openai_path or path:
            return Call(path or openai_path, named or asked, headers)
    named = named or model
    if not named:
        raise UnservableError(f"it names no model: give the header {MODEL_HEADER}, or start the ingress with --model")
    ending = path or "infer"
    if ending not in ("infer", "generate"):
        known = ", ".join(("infer", "generate", *_OPENAI.values()))
        raise UnservableError(f"header {PATH_HEADER} is {ending[:64]!r}: give one of {known}")
    version = given.get(VERSION_HEADER, "")
    versions = f"/versions/{quote(version, safe='')}" if version else ""
    return Call(f"/v2/models/{quote(named, safe='')}{versions}/{ending}", named, headers)


def _protobuf_model(body: bytes) -> str:
    try:
        model = model_of(body)
    except OutOfBoundsError as error:
        raise UnservableError(f"its body is no ModelInferRequest: {error}") from error
    if not model:
        raise UnservableError("its ModelInferRequest names no model: give model_name")
    return model


def _openai(body: bytes) -> tuple[str, str]:
    """Path and model that a body of OpenAI's API asks for; empty where it is none."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(read, dict) or not isinstance(read.get("model"), str):
        return "", ""
    return next((path for member, path in _OPENAI.items() if member in read), ""), read["model"]


def deadline_s(message: Message) -> float:
    """Until when its answer is wanted, Unix time; infinity where it does not say.

    Raises:
        UnservableError: it says no number of milliseconds.
    """
    text = message.headers.get(DEADLINE_HEADER)
    if text is None:
        return float("inf")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise UnservableError(f"header {DEADLINE_HEADER} is {text[:64]!r}: give whole milliseconds since it was sent")
    return message.published_s + int(text) / 1e3


class Caller:
    """Calls the listener."""

    def __init__(self, listener: str, ca: bytes | None = None, unix_s: Callable[[], float] = time.time):
        """`listener`: its URL; `ca`: what signed its certificate, PEM, where the system knows it not."""
        self._listener, self._ca, self._unix_s = listener.rstrip("/"), ca, unix_s
        self._session: aiohttp.ClientSession | None = None
        self._by_grpc: GrpcCaller | None = None

    async def open(self) -> None:
        # As many connections as there are calls: how many, the room says.
        trusted = True if self._ca is None else ssl.create_default_context(cadata=self._ca.decode("ascii"))
        connector = aiohttp.TCPConnector(limit=0, ssl=trusted)
        # Answers are published as they come, so they come as anybody can read them.
        plain = {"Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(connector=connector, headers=plain, auto_decompress=False)
        self._by_grpc = GrpcCaller(self._listener, self._ca)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._by_grpc is not None:
            await self._by_grpc.close()

    async def call(
        self, call: Call, message: Message, until_s: float, execution: Execution | None = None
    ) -> Answer | Failure:
        """Send it, once; `until_s`: Unix time of its deadline. `execution` gets what comes of a streamed answer."""
        session, by_grpc = self._session, self._by_grpc
        assert session is not None  # opened before
        assert by_grpc is not None
        left_s = min(until_s - self._unix_s(), MAX_CALL_S)
        headers = dict(call.headers)
        if until_s < float("inf"):
            headers[DEADLINE_HEADER] = str(max(int(left_s * 1e3), 1))
        if call.path == INFER_PATH:
            return await by_grpc.call(message.body, headers, left_s)
        limit = aiohttp.ClientTimeout(total=max(left_s, 1e-3), sock_connect=5.0)
        url = self._listener + call.path
        try:
            async with session.post(
                url, data=message.body, headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                told = execution if response.content_type == "text/event-stream" else None
                body = await whole_body(response, MAX_ANSWER_BYTES, *(() if told is None else (told.feed,)))
        except aiohttp.ClientConnectorError as error:
            return unreached(self._listener, error.strerror or error)
        except TimeoutError:
            return LATE
        except TooLongError as error:
            return Failure(str(error), final=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return broken(error)
        return _read(response.status, response.headers, body, told)


def _read(status: int, headers: Mapping[str, str], body: bytes, told: Execution | None) -> Answer | Failure:
    if 200 <= status < 300:
        kept = {name: headers[name] for name in RETURNED if name in headers}
        if told is not None:
            kept[EXECUTION_HEADER] = told.name
        return Answer(body, kept | {"x-status": str(status)})
    return refusal(status, body[:MAX_REASON_BYTES].decode("utf-8", "replace"), _retry_after_s(headers))


def _retry_after_s(headers: Mapping[str, Any]) -> float:
    text = str(headers.get("Retry-After", ""))
    return float(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0.0
