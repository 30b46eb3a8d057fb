"""Hostile values, and honest messages with some of their fields made hostile."""

from random import Random
from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.descriptor import FieldDescriptor

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
    *(f"/v2/models/{what}" for what in (f"{MODEL}%2finfer", f"{'x' * 8000}/infer", f"{MODEL}/versions/{'9' * 3000}")),
    *("/v2/health/ready", "/v2", "/v2/", "/v2/models/stats", "/v2/repository/index", "/", "/v1/models", "*"),
    *("/v2/models//infer", "/v2/logging", "/v2/logging/", "/v2//logging", "//v2/logging", "/v2/./logging"),
    *("/v2/x/../logging", "/v2/%6cogging", "/v2%2flogging", "/v2/logging?x=1", "/v2/logging%3f", "/V2/LOGGING"),
    *("/v2/logging;x", "/v2\\logging", "/v2/logging#x", "/v2/trace/setting", "/v2/systemsharedmemory/status"),
    *("/v2/systemsharedmemory/region/x/register", "/v2/cudasharedmemory/unregister", "/v2/models/%ff%fe/infer"),
)
_WORDS = (
    *("sequence_id", "sequence_start", "priority", "timeout", "binary_data_size", "shared_memory_region", "FP32"),
    *("BYTES", "model_name", "model_version", "inputs.shape", "parameters.key", "parameters.value.uint64_param"),
    *("127.0.0.1:1", "::", "x,y", "[::1]:9", "14", "grpc-status", *ROUTING_HEADERS, *GRPC_PATHS, *REST_PATHS),
)
"""Texts that mean something somewhere."""
_FLOATS = (1e308, -1e308, float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 1e-320, 1.5, 2.0**63, 2.0**64, 4.0)
_LARGEST_BYTES = 3_000_000
_SHARES = (0.01, 0.05, 0.2, 0.6)
"""Of the fields of one message that are made hostile."""
_DEEPEST = 6
_NESTED = 45
"""Lists within lists, at most; protobuf itself reads 100."""
_BITS = {
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM, FieldDescriptor.CPPTYPE_UINT32), 32),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64), 64),
}
_UNSIGNED = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)


def name(rng: Random) -> str:
    """A name of a model, version, key or id; most are short, a few are megabytes."""
    if rng.random() < 0.002:
        return "y" * rng.randrange(10_000, _LARGEST_BYTES)
    if rng.random() < 0.1:
        letters = (rng.choice((rng.randrange(1, 128), rng.randrange(0xA0, 0xD7FF))) for _ in range(rng.randrange(40)))
        return "".join(map(chr, letters))
    return rng.choice(NAMES)


def number(rng: Random) -> str:
    """What stands where a number should."""
    return rng.choice(NUMBERS) if rng.random() < 0.8 else str(rng.randrange(-(2**70), 2**70) >> rng.randrange(70))


def text(rng: Random) -> str:
    kind = rng.randrange(3)
    return name(rng) if kind == 0 else number(rng) if kind == 1 else rng.choice(_WORDS)


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


def spoiled(rng: Random, message: Any) -> bytes:
    """An honest message of protobuf as it is sent: some fields hostile, some bytes changed, or as it was."""
    _spoil(rng, message, rng.choice((0.0, *_SHARES)))
    return _sent(rng, message.SerializeToString())


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


def _sent(rng: Random, message: bytes) -> bytes:
    return garbled(rng, message) if rng.random() < 0.1 else message


def _spoil(rng: Random, message: Any, share: float, depth: int = 0) -> None:
    """Change fields of a message of any kind, and of those within it."""
    if isinstance(message, struct_pb2.Value) and rng.random() < share / 4:
        message.CopyFrom(_nested(rng.randrange(_NESTED)))
        return
    for field in message.DESCRIPTOR.fields:
        hostile = rng.random() < share
        if field.is_repeated:
            if field.message_type and field.message_type.GetOptions().map_entry:
                _spoil_map(rng, message, field, share if hostile else 0.0, depth)
            else:
                _spoil_list(rng, getattr(message, field.name), field, share, depth, more=hostile)
        elif field.message_type is not None:
            # Nothing that is not there is made below the depth that honest messages have, or they would never end.
            if message.HasField(field.name) or (hostile and depth < _DEEPEST):
                _spoil(rng, getattr(message, field.name), share, depth + 1)
        elif hostile:
            setattr(message, field.name, _scalar(rng, field))
        if hostile and rng.random() < 0.2:
            message.ClearField(field.name)


def _spoil_list(rng: Random, items: Any, field: FieldDescriptor, share: float, depth: int, *, more: bool) -> None:
    if field.message_type is None:
        items.extend(_scalar(rng, field) for _ in range(_count(rng) if more else 0))
        return
    for item in items:
        _spoil(rng, item, share, depth + 1)
    for _ in range(_count(rng) if more and depth < _DEEPEST else 0):
        added = items.add()
        if items and rng.random() < 0.5:
            added.CopyFrom(items[0])
        _spoil(rng, added, share, depth + 1)


def _spoil_map(rng: Random, message: Any, field: FieldDescriptor, share: float, depth: int) -> None:
    entries = getattr(message, field.name)
    keys = [*entries, *(text(rng)[:100] for _ in range(rng.randrange(4) if share and depth < _DEEPEST else 0))]
    of_entry = field.message_type.fields_by_name["value"]
    for key in keys:
        if of_entry.message_type is not None:
            _spoil(rng, entries[key], share, depth + 1)
        elif rng.random() < share:
            entries[key] = _scalar(rng, of_entry)


def _count(rng: Random) -> int:
    """How many more, of what there may be many."""
    return rng.choice((1, 1, 1, 2, 5, 40, 300 if rng.random() < 0.1 else 1))


def _scalar(rng: Random, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return octets(rng, 400) if field.type == FieldDescriptor.TYPE_BYTES else text(rng)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return real(rng)
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        return drawn if abs(drawn := real(rng)) < 1e38 else float("inf")
    unsigned = integer(rng, _BITS[kind])
    return unsigned if kind in _UNSIGNED else unsigned - 2 ** (_BITS[kind] - 1)


def _nested(depth: int) -> struct_pb2.Value:
    """One leaf below so many lists."""
    result = struct_pb2.Value(string_value=MODEL)
    for _ in range(depth):
        result = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[result]))
    return result
