"""Inferences of REST for the balancer that forwards them, most of them wrong somewhere."""

from __future__ import annotations

import json
import zlib
from random import Random
from typing import Any

from dev.fuzz import hostile
from dev.fuzz.messages import CASCADE
from dev.stack import MODEL

_TYPES = ("FP32", "INT8", "UINT64", "BOOL", "BYTES", "FP16", "FP64", "", "X")
_OF_TENSORS = ("binary_data_size", "binary_data", "shared_memory_region", "shared_memory_offset", "classification")
_OF_REQUESTS = ("sequence_id", "sequence_start", "priority", "timeout", "binary_data_output", "triton_x", "mine")
_DEEP = 100_000


def inference(rng: Random) -> bytes:
    """A request in HTTP/1: good, alike others, or hostile."""
    model = rng.choice((MODEL, MODEL, MODEL, CASCADE, "m", "%ff", "x" * 300))
    content, tail = (_good(rng), b"") if rng.random() < 0.4 else (_hostile(rng), hostile.octets(rng, 60))
    text = _text(rng, content)
    headers = [b"Host: x", b"Connection: close"]
    headers += [name.encode() + b": " + value for name, value in (hostile.header(rng) for _ in range(rng.randrange(3)))]
    if tail or rng.random() < 0.2:
        length = rng.choice((len(text), len(text), len(text), len(text) + 40, len(text) - 1, 0, -1, 10**30, "x", "1e3"))
        headers.append(f"Inference-Header-Content-Length: {length}".encode())
    body = text + tail
    if rng.random() < 0.1:
        headers.append(b"Content-Encoding: " + rng.choice((b"gzip", b"deflate", b"br", b"x")))
        # A thousand times as large again, or none at all.
        body = rng.choice((zlib.compress(body), zlib.compress(b" " * 5_000_000), body))
    headers.append(f"Content-Length: {len(body)}".encode())
    head = b"\r\n".join((f"POST /v2/models/{model}/infer HTTP/1.1".encode(), *headers))
    return head + b"\r\n\r\n" + body


def _good(rng: Random) -> dict[str, Any]:
    """One whose id, tensor or both many others have too."""
    rows = rng.choice((1, 1, 2))
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [rows, 1], "data": [rng.randrange(3)] * rows}
    return {"id": rng.choice(("", "a", "b")), "inputs": [tensor]}


def _hostile(rng: Random) -> Any:
    if rng.random() < 0.1:
        return _value(rng)
    content: dict[str, Any] = {"inputs": [_tensor(rng) for _ in range(rng.choice((0, 1, 1, 2, 40)))]}
    if rng.random() < 0.3:
        content["outputs"] = [_tensor(rng) for _ in range(rng.choice((0, 1, 80)))]
    if rng.random() < 0.3:
        content["parameters"] = {rng.choice((*_OF_REQUESTS, hostile.name(rng)[:99])): _value(rng) for _ in range(3)}
    if rng.random() < 0.3:
        content["id"] = rng.choice((hostile.name(rng), _value(rng)))
    if rng.random() < 0.1:
        content[rng.choice(("inputs", "outputs", "parameters", "id"))] = _value(rng)
    return content


def _tensor(rng: Random) -> Any:
    tensor: dict[str, Any] = {
        "name": rng.choice(("INPUT", hostile.name(rng))),
        "datatype": rng.choice(_TYPES),
        "shape": [rng.choice((0, 1, 1, 2, -1, 2**62, 2**64)) for _ in range(rng.choice((0, 1, 2, 200)))],
        "data": [_value(rng) for _ in range(rng.choice((0, 1, 2, 4)))],
    }
    if rng.random() < 0.4:
        tensor["parameters"] = {rng.choice(_OF_TENSORS): rng.choice((_value(rng), 8, 16)) for _ in range(2)}
        tensor.pop("data", None) if rng.random() < 0.7 else None
    if rng.random() < 0.1:
        tensor[rng.choice(tuple(tensor))] = _value(rng)
    return tensor


def _value(rng: Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind < 6:
        kinds = (None, rng.random() < 0.5, hostile.integer(rng, 64), -hostile.integer(rng, 70), hostile.real(rng))
        return (*kinds, hostile.name(rng)[:2000])[kind]
    inner = [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {f"k{n}": each for n, each in enumerate(inner)} if kind == 6 else inner


def _text(rng: Random, content: Any) -> bytes:
    text = json.dumps(content).encode()
    if rng.random() < 0.05:
        return hostile.garbled(rng, text)
    if rng.random() < 0.01:
        return text.replace(b'"data": [', b'"data": ' + b"[" * _DEEP, 1)
    return text
