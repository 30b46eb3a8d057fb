"""Honest messages to every port, of which an attack is made; each is drawn from a generator."""

import json
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

from envoy.service.accesslog.v3 import als_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from tritonclient.grpc import service_pb2

from balancer.extproc.names import EXTRACTION
from balancer.reports import report_pb2
from dev.stack import MODEL
from fuzz import hostile

CASCADE = "several"
"""Of a balancer with the front end `proxy`: a name that several models serve."""
_ENTRIES = 10
"""Of Envoy's access log, in one message."""
_DEEP = 100_000
_LATER = ("request_body", "response_headers", "response_body", "request_trailers", "response_trailers")


def processing(rng: Random) -> list[bytes]:
    """What Envoy asks of ext_proc for one request."""
    first = ext_proc.ProcessingRequest()
    grpc = rng.random() < 0.6
    headers = {
        ":method": b"POST",
        ":path": rng.choice(hostile.GRPC_PATHS if grpc else hostile.REST_PATHS).encode(),
        "content-type": b"application/grpc" if grpc else b"application/json",
        **dict(hostile.header(rng) for _ in range(rng.randrange(4))),
    }
    for key, value in headers.items():
        first.request_headers.headers.headers.add(key=key, raw_value=value)
    metadata = first.metadata_context.filter_metadata
    if grpc:
        metadata[EXTRACTION].update(_fields(rng))
    if rng.random() < 0.2:
        metadata["envoy.lb.subset_hint"].update({"x-gateway-destination-endpoint-subset": ["127.0.0.1:1"]})
    messages = [first]
    for kind in rng.sample(_LATER, rng.choice((0, 0, 0, 1, 3))):
        later = ext_proc.ProcessingRequest()
        getattr(later, kind).SetInParent()
        if kind == "response_headers":
            later.response_headers.headers.headers.add(key=":status", raw_value=b"200")
            served = {"x-gateway-destination-endpoint-served": "127.0.0.1:1"}
            later.metadata_context.filter_metadata["envoy.lb"].update(served)
        messages.append(later)
    if rng.random() < 0.05:
        rng.shuffle(messages)
    return [hostile.spoiled(rng, message) for message in messages]


def _fields(rng: Random) -> dict[str, Any]:
    """Of a request, as Envoy extracts them."""
    parameters = {"parameters.key": ["sequence_id", "priority"], "parameters.value.int64_param": ["7", "3"]}
    return {"model_name": [MODEL], "model_version": ["1"], "id": ["a"], "inputs.shape": ["4", "1"], **parameters}


def reports(rng: Random, workers: Sequence[str]) -> list[bytes]:
    worker, incarnation = rng.choice(workers), rng.randrange(1, 2**41)
    count = rng.choice((1, 1, 2, 10))
    return [hostile.spoiled(rng, report(worker, incarnation, number)) for number in range(1, 1 + count)]


def report(worker: str, incarnation: int, number: int) -> report_pb2.WorkerReport:
    """An honest one."""
    made = report_pb2.WorkerReport(
        worker=worker, incarnation=incarnation, number=number, ready=True, all_models=True, balancers=1
    )
    model = made.models.add(model=MODEL, version="1", ready=True, succeeded=number, max_batch_rows=1, instances=1)
    model.batches.add(rows=1, executions=number, compute_s=number * 0.0005)
    return made


def access_log(rng: Random, upstreams: Sequence[str]) -> list[bytes]:
    """One message of Envoy's access log."""
    sent = als_pb2.StreamAccessLogsMessage()
    for _ in range(_ENTRIES):
        entry = sent.http_logs.log_entry.add()
        common = entry.common_properties
        common.duration.nanos = common.time_to_last_upstream_rx_byte.nanos = 5_000_000
        host, _, port = rng.choice(upstreams).rpartition(":")
        common.upstream_remote_address.socket_address.address = host
        common.upstream_remote_address.socket_address.port_value = int(port)
        entry.request.path = rng.choice((*hostile.REST_PATHS, *hostile.GRPC_PATHS))
        entry.request.request_id = str(rng.random())
        entry.response.response_code.value = rng.choice((0, 200, 200, 503))
        entry.response.response_trailers["grpc-status"] = rng.choice(("0", "13", "14"))
        metadata = common.metadata.filter_metadata
        metadata["balancer"].update({"number": str(rng.randrange(200_000)), "process": "0"})
        if rng.random() < 0.4:
            metadata[EXTRACTION].update(_fields(rng))
    return [hostile.spoiled(rng, sent)]


def discovery(rng: Random) -> list[bytes]:
    kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    names = ("triton_grpc", "triton_http")
    made = (
        discovery_pb2.DiscoveryRequest(version_info="1", type_url=kind, response_nonce="1", resource_names=names)
        for _ in range(rng.choice((1, 1, 2, 8)))
    )
    return [hostile.spoiled(rng, request) for request in made]


def inference(rng: Random) -> bytes:
    """A ModelInferRequest that has its id, its tensor or both in common with many others."""
    request = service_pb2.ModelInferRequest(model_name=rng.choice((MODEL, CASCADE)), id=rng.choice(("", "a", "b")))
    rows = rng.choice((1, 1, 2))
    request.inputs.add(name="INPUT", datatype="FP32", shape=[rows, 1])
    request.raw_input_contents.append(bytes([rng.randrange(3)]) * 4 * rows)
    if rng.random() < 0.5:
        request.parameters["sequence_id"].int64_param = rng.randrange(9)
        request.outputs.add(name="OUTPUT")
    return hostile.spoiled(rng, request)


def fleet_call(rng: Random) -> tuple[str, bytes]:
    """A path, and the message of some call about the fleet or of a change; not always the one that belongs there."""
    message = rng.choice(
        (
            service_pb2.ModelReadyRequest(name=MODEL),
            service_pb2.ModelConfigRequest(name=MODEL),
            service_pb2.ModelStatisticsRequest(name=MODEL),
            service_pb2.RepositoryIndexRequest(ready=True),
            service_pb2.RepositoryModelLoadRequest(model_name=MODEL),
            service_pb2.SystemSharedMemoryRegisterRequest(name="x", key="y", byte_size=64),
            service_pb2.TraceSettingRequest(model_name=MODEL),
            service_pb2.LogSettingsRequest(),
        )
    )
    fitting = type(message).__name__.removesuffix("Request")
    path = rng.choice((f"/inference.GRPCInferenceService/{fitting}",) * 4 + hostile.GRPC_PATHS)
    return path, hostile.spoiled(rng, message)


def rest_inference(rng: Random) -> bytes:
    """An inference of REST as HTTP/1: good, alike others, or hostile."""
    model = rng.choice((MODEL, MODEL, MODEL, CASCADE, "m", "%ff", "x" * 300))
    rows = rng.choice((1, 1, 2))
    tensor: dict[str, Any] = {"name": "INPUT", "datatype": "FP32", "shape": [rows, 1]}
    tensor["data"] = [rng.randrange(3)] * rows
    content: Any = {"id": rng.choice(("", "a", "b")), "inputs": [tensor]}
    tail = b""
    if rng.random() < 0.6:
        tensor["parameters"] = {"binary_data_size": 8} if rng.random() < 0.3 else {}
        content |= {"parameters": {"sequence_id": 1, "priority": 2, "timeout": 3}, "outputs": [{"name": "OUTPUT"}]}
        tail = hostile.octets(rng, 60)
    text = json.dumps(content).encode()
    if rng.random() < 0.03:
        text = text.replace(b'"data": [', b'"data": ' + b"[" * _DEEP, 1)
    text = hostile.garbled(rng, text) if rng.random() < 0.2 else text
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
    return b"\r\n".join((f"POST /v2/models/{model}/infer HTTP/1.1".encode(), *headers, b"", body))
