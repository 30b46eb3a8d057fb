"""Hostile values, and messages made of them: valid protobuf with content that no honest sender has, and garbage."""

from __future__ import annotations

from random import Random

from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import struct_pb2
from google.protobuf.duration_pb2 import Duration
from tritonclient.grpc import service_pb2

from balancer.telemetry import report_pb2
from benchmarks.stack import MODEL

NUMBERS = (
    *("1e308", "-1e308", "1e400", "-1e6", "0", "-0", "0.5", "nan", "-nan", "inf", "-inf", "1e-320", "2", "16", "65537"),
    *(
        "9" * 5000,
        "-" + "9" * 400,
        "18446744073709551616",
        "9007199254740993",
        "\u0663",
        "²",
        "0x10",
        "1_000",
        " 5",
        "5 ",
    ),
    *("", "+", "-", "1e", "1.2.3", "5\x00", "1;2", "1,2", "true", "'", "%00", "1e308S", "\u200b7"),
)
TIMEOUTS = (
    "9" * 5000 + "S",
    "1S",
    "0n",
    "99999999H",
    "-1S",
    "S",
    "",
    "1",
    "1X",
    "1\xb2S",
    "\xb2S",
    "1e3S",
    "0.5S",
    "\u0661S",
)
"""For `grpc-timeout`; \xb2 is a digit to `str.isdigit` and none to `int`."""
NAMES = (
    *(MODEL, MODEL, MODEL, "m", "", " ", "..", "../../etc/passwd", "x" * 257, "x" * 5000, "\x00", "\xff\xfe", "模型"),
    *("a/b", "identity\n", "identity%2f1", "%", "%2", "{}", "NaN", "null", "identity\u202e", "-1", "*", "\ud7ff"),
)
ROUTING_HEADERS = (
    *("x-batch-rows", "x-sequence-id", "x-model-name", "x-routing-key", "x-priority", "x-tenant", "x-deadline-ms"),
    *("x-request-id", "grpc-timeout", "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset"),
    *(
        "x-gateway-destination-endpoint-served",
        "x-envoy-max-retries",
        "x-envoy-retry-on",
        "x-envoy-upstream-rq-timeout-ms",
    ),
)
_GRPC = "/inference.GRPCInferenceService/"
GRPC_PATHS = tuple(
    _GRPC + method
    for method in (
        *(
            "ModelInfer",
            "ModelInfer",
            "ModelInfer",
            "ModelStreamInfer",
            "ModelReady",
            "ModelMetadata",
            "ModelStatistics",
        ),
        *(
            "ServerLive",
            "RepositoryModelLoad",
            "RepositoryModelUnload",
            "RepositoryIndex",
            "SystemSharedMemoryRegister",
        ),
        *("CudaSharedMemoryStatus", "TraceSetting", "LogSettings", "logsettings", "", "ModelInfer/", "../LogSettings"),
    )
)
REST_PATHS = (
    *(f"/v2/models/{MODEL}/infer",) * 4,
    *(f"/v2/models/{MODEL}/versions/1/infer", f"/v2/models/{MODEL}/generate_stream", f"/v2/models/{MODEL}/ready"),
    *(
        "/v2/health/ready",
        "/v2",
        "/v2/",
        "/v2/models/stats",
        "/v2/repository/index",
        "/",
        "/v1/models",
        "*",
        "/v2/models//infer",
    ),
    *(
        "/v2/logging",
        "/v2/logging/",
        "/v2//logging",
        "//v2/logging",
        "/v2/./logging",
        "/v2/x/../logging",
        "/v2/%6cogging",
    ),
    *(
        "/v2%2flogging",
        "/v2/logging?x=1",
        "/v2/logging%3f",
        "/V2/LOGGING",
        "/v2/logging;x",
        "/v2\\logging",
        "/v2/logging#x",
    ),
    *("/v2/trace/setting", f"/v2/models/{MODEL}/trace/setting", f"/v2/repository/models/{MODEL}/unload"),
    *(
        f"/v2/repository/models/{MODEL}%2funload",
        f"/v2/repository/models/a/b/{MODEL}/load",
        "/v2/systemsharedmemory/status",
    ),
    *("/v2/systemsharedmemory/region/x/register", "/v2/cudasharedmemory/unregister", f"/v2/models/{MODEL}%2finfer"),
    *(f"/v2/models/{'x' * 8000}/infer", f"/v2/models/{MODEL}/versions/{'9' * 3000}/infer", "/v2/models/%ff%fe/infer"),
)
EXTRACTION = "envoy.filters.http.grpc_field_extraction"
_FIELDS = (
    *("model_name", "model_version", "id", "inputs.shape", "parameters.key", "name", "version"),
    *(f"parameters.value.{kind}_param" for kind in ("bool", "int64", "uint64", "string")),
)
_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "mine", "")
_FLOATS = (
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    -1.0,
    0.0,
    -0.0,
    1e-320,
    1.5,
    2.0**63,
    2.0**64,
    4.0,
)
_LARGEST_BYTES = 3_000_000
_SELDOM = 0.002


def name(rng: Random) -> str:
    """A name of a model, version, key or id; most are short, a few are megabytes."""
    if rng.random() < _SELDOM:
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
    """Any bytes."""
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


def _values(texts: list[str]) -> struct_pb2.Value:
    return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value(string_value=t) for t in texts]))


def _fields(rng: Random) -> struct_pb2.Struct:
    fields = {"model_name": _values([MODEL])}
    for field in rng.sample(_FIELDS, rng.randrange(6)):
        fields[field] = nested(rng.randrange(45)) if rng.random() < 0.05 else value(rng)
    if rng.random() < 0.3:
        keys = [rng.choice(_PARAMETERS) for _ in range(rng.randrange(6))]
        fields["parameters.key"] = _values(keys)
        kind = rng.choice(("bool", "int64", "uint64", "string"))
        fields[f"parameters.value.{kind}_param"] = _values([number(rng) for _ in keys])
    return struct_pb2.Struct(fields=fields)


def processing_requests(rng: Random) -> list[bytes]:
    """The messages of one ext_proc stream."""
    first = ext_proc.ProcessingRequest()
    grpc = rng.random() < 0.6
    headers = [
        (":method", b"POST"),
        (":path", rng.choice(GRPC_PATHS if grpc else REST_PATHS).encode()),
        ("content-type", b"application/grpc" if grpc else rng.choice((b"application/json", b"", octets(rng)))),
        *(header(rng) for _ in range(rng.randrange(5))),
    ]
    if rng.random() < 0.1:
        rng.shuffle(headers)
        headers = headers[1:]
    first.request_headers.SetInParent()
    for key, raw in headers:
        one = base_pb2.HeaderValue(key=key, raw_value=raw)
        first.request_headers.headers.headers.append(one)
    metadata = first.metadata_context.filter_metadata
    if grpc or rng.random() < 0.1:
        metadata[EXTRACTION].CopyFrom(_fields(rng))
    if rng.random() < 0.2:
        hint = value(rng) if rng.random() < 0.5 else _values([rng.choice(("127.0.0.1:1", "", "::", "x,y", "[::1]:9"))])
        metadata["envoy.lb.subset_hint"].CopyFrom(
            struct_pb2.Struct(fields={"x-gateway-destination-endpoint-subset": hint})
        )
    messages = [first, *(_later(rng) for _ in range(rng.choice((0, 0, 0, 1, 3))))]
    if rng.random() < 0.05:
        rng.shuffle(messages)
    return [each.SerializeToString() for each in messages]


def _later(rng: Random) -> ext_proc.ProcessingRequest:
    later = ext_proc.ProcessingRequest()
    kind = rng.choice(
        (
            "request_headers",
            "request_body",
            "response_headers",
            "response_body",
            "request_trailers",
            "response_trailers",
            "",
        )
    )
    if not kind:
        return later
    part = getattr(later, kind)
    part.SetInParent()
    if kind.endswith("_body"):
        part.body = octets(rng, 5000)
        part.end_of_stream = rng.random() < 0.5
    elif kind.endswith("_headers"):
        status = number(rng).encode("utf-8", "replace")
        part.headers.headers.append(base_pb2.HeaderValue(key=":status", raw_value=status))
        served = struct_pb2.Struct(fields={"x-gateway-destination-endpoint-served": value(rng)})
        later.metadata_context.filter_metadata["envoy.lb"].CopyFrom(served)
    return later


def reports(rng: Random, workers: tuple[str, ...]) -> list[bytes]:
    """The reports of one stream."""
    worker = rng.choice((*workers, *workers, name(rng)))
    return [_report(rng, worker, number) for number in range(rng.choice((1, 1, 2, 10)))]


def _report(rng: Random, worker: str, order: int) -> bytes:
    report = report_pb2.WorkerReport(
        worker=worker if rng.random() < 0.95 else name(rng),
        incarnation=integer(rng, 64),
        number=order + 1 if rng.random() < 0.7 else integer(rng, 64),
        ready=rng.random() < 0.8,
        all_models=rng.random() < 0.8,
        balancers=integer(rng, 32) if rng.random() < 0.3 else 1,
        device=rng.choice(("", "A100", name(rng))),
        memory_bytes=integer(rng, 64),
        memory_used_bytes=integer(rng, 64),
        utilisation=rng.choice((0.5, real(rng))),
    )
    for number in range(rng.choice((0, 1, 1, 2, 5, 300 if rng.random() < 0.02 else 1))):
        model = report.models.add(
            model=rng.choice((MODEL, f"m{rng.randrange(10_000)}", name(rng))),
            version=rng.choice(("1", "", str(number), name(rng))),
            ready=rng.random() < 0.8,
            pending=_float32(real(rng)),
            executing=_float32(real(rng)),
            succeeded=integer(rng, 64),
            failed=integer(rng, 64),
            max_batch_rows=integer(rng, 32),
            instances=integer(rng, 32),
        )
        for _ in range(rng.choice((0, 1, 3, 500 if rng.random() < 0.02 else 1))):
            model.batches.add(rows=integer(rng, 32), executions=integer(rng, 64), compute_s=real(rng))
    return bytes(report.SerializeToString())


def _float32(number: float) -> float:
    return number if abs(number) < 1e38 else float("inf")


def access_logs(rng: Random, upstreams: tuple[str, ...], entries: int) -> bytes:
    """One message of Envoy's access log with so many entries."""
    sent = als_pb2.StreamAccessLogsMessage()
    if rng.random() < 0.01:
        sent.tcp_logs.log_entry.add()
        return bytes(sent.SerializeToString())
    for _ in range(entries):
        _entry(rng, sent.http_logs.log_entry.add(), upstreams)
    return bytes(sent.SerializeToString())


def _entry(rng: Random, entry: accesslog_pb2.HTTPAccessLogEntry, upstreams: tuple[str, ...]) -> None:
    common = entry.common_properties
    for field in (
        "duration",
        "time_to_last_upstream_rx_byte",
        "time_to_first_upstream_tx_byte",
        "time_to_first_upstream_rx_byte",
    ):
        if rng.random() < 0.8:
            seconds = rng.choice((0, 0, -1, 10**15, 2**63 - 1, -(2**63), rng.randrange(1000)))
            nanos = rng.choice((0, 10**6, -(10**6), 2**31 - 1, -(2**31)))
            getattr(common, field).CopyFrom(Duration(seconds=seconds, nanos=nanos))
    if rng.random() < 0.8:
        socket = common.upstream_remote_address.socket_address
        host, _, port = rng.choice(upstreams).rpartition(":")
        socket.address, socket.port_value = rng.choice(
            ((host, int(port)), (host, int(port)), (name(rng), integer(rng, 32)))
        )
    for flag in (
        "downstream_connection_termination",
        "upstream_remote_reset",
        "upstream_connection_failure",
        "no_route_found",
    ):
        if rng.random() < 0.2:
            setattr(common.response_flags, flag, True)
    common.upstream_request_attempt_count = integer(rng, 32)
    entry.request.path = rng.choice((*REST_PATHS, *GRPC_PATHS, name(rng)))
    entry.request.request_id = name(rng)
    entry.request.request_body_bytes = integer(rng, 64)
    entry.response.response_body_bytes = integer(rng, 64)
    entry.response.response_code.value = rng.choice((0, 200, 200, 503, 999, 2**32 - 1, rng.randrange(100_000)))
    if rng.random() < 0.6:
        headers = rng.choice((entry.response.response_headers, entry.response.response_trailers))
        headers["grpc-status"] = rng.choice(("0", "13", "14", "²", number(rng)))
    ours = struct_pb2.Value(string_value=rng.choice((str(rng.randrange(200_000)), number(rng))))
    metadata = common.metadata.filter_metadata
    if rng.random() < 0.8:
        fields = {"number": ours if rng.random() < 0.8 else value(rng), "process": struct_pb2.Value(string_value="0")}
        metadata["balancer"].CopyFrom(struct_pb2.Struct(fields=fields))
    if rng.random() < 0.4:
        metadata[EXTRACTION].CopyFrom(_fields(rng))


def discovery_requests(rng: Random) -> list[bytes]:
    """The messages of one ADS stream."""
    types = (
        "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "type.googleapis.com/x",
        name(rng)[:500],
    )
    made = []
    for _ in range(rng.choice((1, 1, 2, 8))):
        request = discovery_pb2.DiscoveryRequest(
            version_info=rng.choice(("", "1", name(rng)[:500])),
            type_url=rng.choice(types),
            response_nonce=rng.choice(("", "1", name(rng)[:500])),
            resource_names=[
                rng.choice(("triton_grpc", "triton_http", name(rng)[:500])) for _ in range(rng.choice((0, 1, 2, 500)))
            ],
        )
        request.node.id = name(rng)[:500]
        if rng.random() < 0.3:
            request.error_detail.code = rng.randrange(-(2**31), 2**31)
            request.error_detail.message = name(rng)[:5000]
        made.append(request.SerializeToString())
    return made


def inference(rng: Random) -> bytes:
    """A gRPC ModelInferRequest with hostile fields."""
    request = service_pb2.ModelInferRequest(
        model_name=rng.choice((MODEL, name(rng))), model_version=rng.choice(("", "1", name(rng))), id=name(rng)
    )
    for _ in range(rng.choice((0, 1, 1, 2, 40))):
        tensor = request.inputs.add(name="INPUT", datatype=rng.choice(("FP32", name(rng)[:100])))
        tensor.shape.extend(rng.choice((0, 1, -1, 2**63 - 1, -(2**63), 4)) for _ in range(rng.choice((0, 1, 2, 200))))
    for _ in range(rng.randrange(4)):
        parameter = request.parameters[rng.choice((*_PARAMETERS, name(rng)[:100]))]
        match rng.randrange(4):
            case 0:
                parameter.bool_param = rng.random() < 0.5
            case 1:
                parameter.int64_param = rng.choice((0, -1, 2**63 - 1, -(2**63)))
            case 2:
                parameter.string_param = number(rng)
            case 3:
                parameter.uint64_param = integer(rng, 64)
    request.raw_input_contents.append(octets(rng, 400))
    return bytes(request.SerializeToString())


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
