"""Hostile values: numbers, names, headers and paths that no honest sender has."""

from __future__ import annotations

from random import Random

from google.protobuf import struct_pb2

from balancer.extproc.kserve import SERVICE
from dev.stack import MODEL

NUMBERS = (
    *("1e308", "-1e308", "1e400", "-1e6", "0", "-0", "0.5", "nan", "-nan", "inf", "-inf", "1e-320", "2", "16"),
    *("65537", "9" * 5000, "-" + "9" * 400, "18446744073709551616", "9007199254740993", "\u0663", "²", "0x10"),
    *("1_000", " 5", "5 ", "", "+", "-", "1e", "1.2.3", "5\x00", "1;2", "1,2", "true", "'", "%00", "1e308S"),
    *("\u200b7",),
)
TIMEOUTS = (
    *("9" * 5000 + "S", "1S", "0n", "99999999H", "-1S", "S", "", "1", "1X", "1\xb2S", "\xb2S", "1e3S", "0.5S"),
    *("\u0661S",),
)
"""For `grpc-timeout`; \xb2 is a digit to `str.isdigit` and none to `int`."""
NAMES = (
    *(MODEL, MODEL, MODEL, "m", "", " ", "..", "../../etc/passwd", "x" * 257, "x" * 5000, "\x00", "\xff\xfe", "模型"),
    *("a/b", "identity\n", "identity%2f1", "%", "%2", "{}", "NaN", "null", "identity\u202e", "-1", "*", "\ud7ff"),
)
ROUTING_HEADERS = (
    *("x-batch-rows", "x-sequence-id", "x-model-name", "x-routing-key", "x-priority", "x-tenant", "x-deadline-ms"),
    *("x-request-id", "grpc-timeout"),
    *(f"x-gateway-destination-endpoint{what}" for what in ("", "-subset", "-served")),
    *(f"x-envoy-{what}" for what in ("max-retries", "retry-on", "upstream-rq-timeout-ms")),
)
_METHODS = (
    *("ModelInfer", "ModelInfer", "ModelInfer", "ModelStreamInfer", "ModelReady", "ModelMetadata"),
    *("ModelStatistics", "ServerLive", "RepositoryModelLoad", "RepositoryModelUnload", "RepositoryIndex"),
    *("SystemSharedMemoryRegister", "CudaSharedMemoryStatus", "TraceSetting", "LogSettings", "logsettings", ""),
    *("ModelInfer/", "../LogSettings"),
)
GRPC_PATHS = tuple(SERVICE + method for method in _METHODS)
REST_PATHS = (
    *(f"/v2/models/{MODEL}/infer",) * 4,
    *(f"/v2/models/{MODEL}/{what}" for what in ("versions/1/infer", "generate_stream", "ready", "trace/setting")),
    *(f"/v2/repository/models/{what}" for what in (f"{MODEL}/unload", f"{MODEL}%2funload", f"a/b/{MODEL}/load")),
    *(
        f"/v2/models/{MODEL}%2finfer",
        f"/v2/models/{'x' * 8000}/infer",
        f"/v2/models/{MODEL}/versions/{'9' * 3000}/infer",
    ),
    *("/v2/health/ready", "/v2", "/v2/", "/v2/models/stats", "/v2/repository/index", "/", "/v1/models", "*"),
    *("/v2/models//infer", "/v2/logging", "/v2/logging/", "/v2//logging", "//v2/logging", "/v2/./logging"),
    *("/v2/x/../logging", "/v2/%6cogging", "/v2%2flogging", "/v2/logging?x=1", "/v2/logging%3f", "/V2/LOGGING"),
    *("/v2/logging;x", "/v2\\logging", "/v2/logging#x", "/v2/trace/setting", "/v2/systemsharedmemory/status"),
    *("/v2/systemsharedmemory/region/x/register", "/v2/cudasharedmemory/unregister", "/v2/models/%ff%fe/infer"),
)
_NO_NUMBERS = (float("nan"), float("inf"), float("-inf"))
_FLOATS = (1e308, -1e308, *_NO_NUMBERS, -1.0, 0.0, -0.0, 1e-320, 1.5, 2.0**63, 2.0**64, 4.0)
_LARGEST_BYTES = 3_000_000
_THROTTLE = 0.002


def name(rng: Random) -> str:
    """A name of a model, version, key or id; most are short, a few are megabytes."""
    if rng.random() < _THROTTLE:
        return "y" * rng.randrange(10_000, _LARGEST_BYTES)
    if rng.random() < 0.1:
        return "".join(
            chr(rng.choice((rng.randrange(1, 128), rng.randrange(0xA0, 0xD7FF)))) for _ in range(rng.randrange(40))
        )
    return rng.choice(NAMES)


def number(rng: Random) -> str:
    """What stands where a number should."""
    return rng.choice(NUMBERS) if rng.random() < 0.8 else str(rng.randrange(-(2**70), 2**70) >> rng.randrange(70))


def octets(rng: Random, most: int = 200) -> bytes:
    return rng.randbytes(rng.randrange(most))


def header(rng: Random) -> tuple[str, bytes]:
    """A request header, mostly one that routing reads."""
    key = rng.choice(ROUTING_HEADERS) if rng.random() < 0.9 else f"x-{rng.randrange(1000)}"
    if key == "grpc-timeout":
        return key, rng.choice(TIMEOUTS).encode("latin-1", "replace")
    if rng.random() < 0.1:
        return key, octets(rng)
    value = number(rng) if rng.random() < 0.7 else name(rng)[:8000]
    return key, value.encode("utf-8", "replace")


def integer(rng: Random, bits: int) -> int:
    """An unsigned number of that many bits at most, often at an edge."""
    return rng.choice((0, 1, 2**bits - 1, 2 ** (bits - 1), 65_536, rng.randrange(2**bits), rng.randrange(100)))


def real(rng: Random) -> float:
    """A float, often none that counts."""
    return rng.choice(_FLOATS) if rng.random() < 0.7 else rng.uniform(-10.0, 1e6)


def value(rng: Random, depth: int = 0) -> struct_pb2.Value:
    """Metadata of any kind, lists in lists included."""
    kind = rng.randrange(8 if depth < 6 else 5)
    if kind == 0:
        return struct_pb2.Value(number_value=real(rng))
    if kind == 1:
        return struct_pb2.Value(bool_value=rng.random() < 0.5)
    if kind == 2:
        return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    if kind in {3, 4}:
        return struct_pb2.Value(string_value=rng.choice((name, number))(rng))
    if kind == 7:
        return struct_pb2.Value(struct_value=struct_pb2.Struct(fields={"x": value(rng, depth + 1)}))
    items = [value(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 30 if depth < 2 else 1)))]
    return struct_pb2.Value(list_value=struct_pb2.ListValue(values=items))


def nested(depth: int) -> struct_pb2.Value:
    """One leaf below so many lists."""
    result = struct_pb2.Value(string_value=MODEL)
    for _ in range(depth):
        result = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[result]))
    return result


def garbled(rng: Random, original: bytes) -> bytes:
    """A message with some of its bytes changed, cut off or doubled; or bytes that never were one."""
    if rng.random() < 0.2:
        return octets(rng, 1000)
    damaged = bytearray(original[:20_000])
    for _ in range(rng.randrange(1, 6)):
        if damaged:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    cut = rng.randrange(len(damaged) + 1)
    return bytes(rng.choice((damaged, damaged[:cut], damaged[cut:] + damaged[:cut])))
