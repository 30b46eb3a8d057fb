"""Messages to every port: valid protobuf with content that no honest sender has."""

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

from balancer.extproc.names import EXTRACTION
from balancer.reports import report_pb2
from dev.fuzz import hostile as odd
from dev.stack import MODEL

_FIELDS = (
    *("model_name", "model_version", "id", "inputs.shape", "parameters.key", "name", "version"),
    *(f"parameters.value.{kind}_param" for kind in ("bool", "int64", "uint64", "string")),
)
_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "mine", "")

CASCADE = "several"
"""Of a balancer with the front end `proxy`: a name that several models serve."""


def _values(texts: list[str]) -> struct_pb2.Value:
    return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value(string_value=t) for t in texts]))


def _fields(rng: Random) -> struct_pb2.Struct:
    fields = {"model_name": _values([MODEL])}
    for field in rng.sample(_FIELDS, rng.randrange(6)):
        fields[field] = odd.nested(rng.randrange(45)) if rng.random() < 0.05 else odd.value(rng)
    if rng.random() < 0.3:
        keys = [rng.choice(_PARAMETERS) for _ in range(rng.randrange(6))]
        fields["parameters.key"] = _values(keys)
        kind = rng.choice(("bool", "int64", "uint64", "string"))
        fields[f"parameters.value.{kind}_param"] = _values([odd.number(rng) for _ in keys])
    return struct_pb2.Struct(fields=fields)


def processing_requests(rng: Random) -> list[bytes]:
    first = ext_proc.ProcessingRequest()
    grpc = rng.random() < 0.6
    headers = [
        (":method", b"POST"),
        (":path", rng.choice(odd.GRPC_PATHS if grpc else odd.REST_PATHS).encode()),
        ("content-type", b"application/grpc" if grpc else rng.choice((b"application/json", b"", odd.octets(rng)))),
        *(odd.header(rng) for _ in range(rng.randrange(5))),
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
        hint = (
            odd.value(rng) if rng.random() < 0.5 else _values([rng.choice(("127.0.0.1:1", "", "::", "x,y", "[::1]:9"))])
        )
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
        part.body = odd.octets(rng, 5000)
        part.end_of_stream = rng.random() < 0.5
    elif kind.endswith("_headers"):
        status = odd.number(rng).encode("utf-8", "replace")
        part.headers.headers.append(base_pb2.HeaderValue(key=":status", raw_value=status))
        served = struct_pb2.Struct(fields={"x-gateway-destination-endpoint-served": odd.value(rng)})
        later.metadata_context.filter_metadata["envoy.lb"].CopyFrom(served)
    return later


def reports(rng: Random, workers: tuple[str, ...]) -> list[bytes]:
    worker = rng.choice((*workers, *workers, odd.name(rng)))
    return [_report(rng, worker, number) for number in range(rng.choice((1, 1, 2, 10)))]


def _report(rng: Random, worker: str, order: int) -> bytes:
    report = report_pb2.WorkerReport(
        worker=worker if rng.random() < 0.95 else odd.name(rng),
        incarnation=odd.integer(rng, 64),
        number=order + 1 if rng.random() < 0.7 else odd.integer(rng, 64),
        ready=rng.random() < 0.8,
        all_models=rng.random() < 0.8,
        balancers=odd.integer(rng, 32) if rng.random() < 0.3 else 1,
        device=rng.choice(("", "A100", odd.name(rng))),
        memory_bytes=odd.integer(rng, 64),
        memory_used_bytes=odd.integer(rng, 64),
        utilisation=rng.choice((0.5, odd.real(rng))),
    )
    report.asks = rng.random() < 0.05
    for _ in range(rng.choice((0, 0, 1, 3, 300 if rng.random() < 0.02 else 1))):
        report.others.in_flight.add(model=rng.choice((MODEL, odd.name(rng))), requests=odd.integer(rng, 32))
    for number in range(rng.choice((0, 1, 1, 2, 5, 300 if rng.random() < 0.02 else 1))):
        model = report.models.add(
            model=rng.choice((MODEL, f"m{rng.randrange(10_000)}", odd.name(rng))),
            version=rng.choice(("1", "", str(number), odd.name(rng))),
            ready=rng.random() < 0.8,
            pending=_float32(odd.real(rng)),
            executing=_float32(odd.real(rng)),
            succeeded=odd.integer(rng, 64),
            failed=odd.integer(rng, 64),
            max_batch_rows=odd.integer(rng, 32),
            instances=odd.integer(rng, 32),
        )
        for _ in range(rng.choice((0, 1, 3, 500 if rng.random() < 0.02 else 1))):
            model.batches.add(rows=odd.integer(rng, 32), executions=odd.integer(rng, 64), compute_s=odd.real(rng))
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
            ((host, int(port)), (host, int(port)), (odd.name(rng), odd.integer(rng, 32)))
        )
    for flag in (
        "downstream_connection_termination",
        "upstream_remote_reset",
        "upstream_connection_failure",
        "no_route_found",
    ):
        if rng.random() < 0.2:
            setattr(common.response_flags, flag, True)
    common.upstream_request_attempt_count = odd.integer(rng, 32)
    entry.request.path = rng.choice((*odd.REST_PATHS, *odd.GRPC_PATHS, odd.name(rng)))
    entry.request.request_id = odd.name(rng)
    entry.request.request_body_bytes = odd.integer(rng, 64)
    entry.response.response_body_bytes = odd.integer(rng, 64)
    entry.response.response_code.value = rng.choice((0, 200, 200, 503, 999, 2**32 - 1, rng.randrange(100_000)))
    if rng.random() < 0.6:
        headers = rng.choice((entry.response.response_headers, entry.response.response_trailers))
        headers["grpc-status"] = rng.choice(("0", "13", "14", "²", odd.number(rng)))
    ours = struct_pb2.Value(string_value=rng.choice((str(rng.randrange(200_000)), odd.number(rng))))
    metadata = common.metadata.filter_metadata
    if rng.random() < 0.8:
        fields = {
            "number": ours if rng.random() < 0.8 else odd.value(rng),
            "process": struct_pb2.Value(string_value="0"),
        }
        metadata["balancer"].CopyFrom(struct_pb2.Struct(fields=fields))
    if rng.random() < 0.4:
        metadata[EXTRACTION].CopyFrom(_fields(rng))


def discovery_requests(rng: Random) -> list[bytes]:
    types = (
        "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "type.googleapis.com/x",
        odd.name(rng)[:500],
    )
    made = []
    for _ in range(rng.choice((1, 1, 2, 8))):
        request = discovery_pb2.DiscoveryRequest(
            version_info=rng.choice(("", "1", odd.name(rng)[:500])),
            type_url=rng.choice(types),
            response_nonce=rng.choice(("", "1", odd.name(rng)[:500])),
            resource_names=[
                rng.choice(("triton_grpc", "triton_http", odd.name(rng)[:500]))
                for _ in range(rng.choice((0, 1, 2, 500)))
            ],
        )
        request.node.id = odd.name(rng)[:500]
        if rng.random() < 0.3:
            request.error_detail.code = rng.randrange(-(2**31), 2**31)
            request.error_detail.message = odd.name(rng)[:5000]
        made.append(request.SerializeToString())
    return made


def inference(rng: Random) -> bytes:
    """A gRPC ModelInferRequest with hostile fields."""
    request = service_pb2.ModelInferRequest(
        model_name=rng.choice((MODEL, CASCADE, odd.name(rng))),
        model_version=rng.choice(("", "1", odd.name(rng))),
        id=odd.name(rng),
    )
    for _ in range(rng.choice((0, 1, 1, 2, 40))):
        tensor = request.inputs.add(name="INPUT", datatype=rng.choice(("FP32", odd.name(rng)[:100])))
        tensor.shape.extend(rng.choice((0, 1, -1, 2**63 - 1, -(2**63), 4)) for _ in range(rng.choice((0, 1, 2, 200))))
    for _ in range(rng.randrange(4)):
        parameter = request.parameters[rng.choice((*_PARAMETERS, odd.name(rng)[:100]))]
        match rng.randrange(4):
            case 0:
                parameter.bool_param = rng.random() < 0.5
            case 1:
                parameter.int64_param = rng.choice((0, -1, 2**63 - 1, -(2**63)))
            case 2:
                parameter.string_param = odd.number(rng)
            case 3:
                parameter.uint64_param = odd.integer(rng, 64)
    for _ in range(rng.choice((0, 0, 1, 80))):
        output = request.outputs.add(name=rng.choice(("OUTPUT", odd.name(rng))))
        output.parameters[rng.choice(("shared_memory_region", odd.name(rng)[:100]))].string_param = odd.name(rng)
    request.raw_input_contents.append(odd.octets(rng, 400))
    return bytes(request.SerializeToString())


def fleet_call(rng: Random) -> tuple[str, bytes]:
    """A path, and the message of some call about the fleet or of a change; not always the one that belongs there."""
    kinds = (
        service_pb2.ModelReadyRequest(name=odd.name(rng), version=odd.name(rng)),
        service_pb2.ModelConfigRequest(name=rng.choice((MODEL, odd.name(rng)))),
        service_pb2.ModelStatisticsRequest(name=rng.choice((MODEL, "", odd.name(rng)))),
        service_pb2.RepositoryIndexRequest(repository_name=odd.name(rng), ready=rng.random() < 0.5),
        service_pb2.RepositoryModelLoadRequest(model_name=odd.name(rng)),
        service_pb2.SystemSharedMemoryRegisterRequest(
            name=odd.name(rng), key=odd.name(rng), byte_size=rng.getrandbits(64)
        ),
        service_pb2.TraceSettingRequest(model_name=odd.name(rng)),
        service_pb2.LogSettingsRequest(),
    )
    message = rng.choice(kinds)
    if isinstance(message, service_pb2.TraceSettingRequest) and rng.random() < 0.5:
        message.settings[odd.name(rng)].value.extend(odd.name(rng) for _ in range(rng.randrange(4)))
    fitting = type(message).__name__.removesuffix("Request")
    path = rng.choice((f"/inference.GRPCInferenceService/{fitting}",) * 4 + odd.GRPC_PATHS)
    return path, message.SerializeToString()


def alike(rng: Random) -> bytes:
    """A good ModelInferRequest that has its id, its tensor or both in common with many others."""
    request = service_pb2.ModelInferRequest(model_name=rng.choice((MODEL, CASCADE)), id=rng.choice(("", "a", "b")))
    rows = rng.choice((1, 1, 2))
    request.inputs.add(name="INPUT", datatype="FP32", shape=[rows, 1])
    request.raw_input_contents.append(bytes([rng.randrange(3)]) * 4 * rows)
    return bytes(request.SerializeToString())
