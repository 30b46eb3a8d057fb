"""What a message asks of the listener. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from balancer.bounds import OutOfBoundsError
from balancer.ingress.grpc_caller import INFER_PATH, PROTOBUF, model_of
from balancer.ingress.message import ID_HEADER, MAX_ID_BYTES, NO_ID, Message

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
