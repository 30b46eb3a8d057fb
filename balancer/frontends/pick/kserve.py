"""What a request asks for, read from headers and from the fields that Envoy extracted; never from a body.

A pure translation from the KServe v2 protocol (gRPC and REST) to the router's `Request`. What each front of the
protocol can tell without its body, and the headers that stand in for the rest, is tabled in the README beside this.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from policies.base import Request
from policies.hashing import key_of, mix

SERVICE = "/inference.GRPCInferenceService/"
EXTRACTION = "envoy.filters.http.grpc_field_extraction"
_TIMEOUT_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_INFERENCE = {"ModelInfer", "ModelStreamInfer"}
_ABOUT_MODEL = {"ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"}
_PER_SERVER = re.compile(
    r"RepositoryModel(Load|Unload)|(System|Cuda)SharedMemory\w+|TraceSetting|LogSettings"
    r"|/v2/(repository/models/.+/(load|unload)|(system|cuda)sharedmemory/.*|(models/.+/)?trace/setting|logging)"
)
_REST_MODEL = re.compile(r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/(?P<verb>\w+))?/?")

# Parameters of a request that concern routing, by the kind that Triton's clients give each. Envoy hands over keys and
# values as one list for each kind, in order, so a value is found by counting the keys of its kind before it.
_KIND = {
    "sequence_start": "bool_param",
    "sequence_end": "bool_param",
    "binary_data_output": "bool_param",
    "triton_enable_empty_final_response": "bool_param",
    "timeout": "int64_param",
    "priority": "uint64_param",
}


class Kind(enum.Enum):
    """What kind of call this is, which decides what may be asked of a worker."""

    INFERENCE = "inference"
    STREAM = "stream"
    """A stream of inferences; all of it goes to one worker, and its duration is no latency."""
    MODEL = "model"
    """About a model: metadata, config, readiness, statistics."""
    SERVER = "server"
    """About a server: any will do."""
    PER_SERVER = "per_server"
    """Changes one server (load a model, register memory), so balancing it would be a surprise."""


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The headers that carry what cannot be had without the body; lower case."""

    model: str = "x-model-name"
    rows: str = "x-batch-rows"
    key: str = "x-routing-key"
    sequence: str = "x-sequence-id"
    priority: str = "x-priority"
    tenant: str = "x-tenant"
    deadline: str = "x-deadline-ms"


@dataclass(frozen=True, slots=True)
class Call:
    """A request as the pick front end understands it."""

    kind: Kind
    request: Request
    grpc: bool
    request_id: str
    """Envoy's x-request-id, which is the client's own where it sends one; Triton gets the same header."""
    triton_request_id: str
    """The id in the message, which Triton puts into its log and its errors; empty where the client gave none."""


def read_call(headers: Mapping[str, str], fields: Mapping[str, Sequence[object]], names: HeaderNames) -> Call:
    """Understand one call.

    Args:
        headers: Of the request, names in lower case, pseudo-headers included.
        fields: What Envoy extracted: lists of values by field path, empty for REST and for other gateways.
        names: Of the headers that stand in for fields.

    Headers win over fields: who sets one means it. A value that cannot be read counts as absent, since routing must
    not refuse what Triton would take.
    """
    path = headers.get(":path", "").partition("?")[0]
    grpc = headers.get("content-type", "").startswith("application/grpc")
    kind, model, version = _grpc_call(path, fields) if grpc else _rest_call(path)
    parameters = dict(_parameters(fields)) if fields.get("parameters.key") else {}
    model = headers.get(names.model) or model
    sequence_id = headers.get(names.sequence) or str(parameters.get("sequence_id", ""))
    in_sequence = sequence_id not in {"", "0"}
    key = headers.get(names.key)
    request = Request(
        model=model,
        version=version,
        rows=_number(headers.get(names.rows)) or _rows(fields),
        key=sequence_key(model, sequence_id) if in_sequence else key_of(key) if key else None,
        deadline_s=_deadline_s(headers, names, parameters),
        priority=int(_number(headers.get(names.priority) or parameters.get("priority")) or 0),
        tenant=headers.get(names.tenant, ""),
        sequence=in_sequence,
    )
    return Call(kind, request, grpc, headers.get("x-request-id", ""), str(_first(fields, "id")))


def sequence_key(model: str, sequence_id: str) -> int:
    """The key that places a sequence; sequences of different models are different."""
    return mix(key_of(model) ^ key_of(sequence_id))


def _grpc_call(path: str, fields: Mapping[str, Sequence[object]]) -> tuple[Kind, str, str]:
    method = path.removeprefix(SERVICE)
    if method in _INFERENCE:
        kind = Kind.STREAM if method == "ModelStreamInfer" else Kind.INFERENCE
        return kind, str(_first(fields, "model_name")), str(_first(fields, "model_version"))
    name = str(_first(fields, "name"))
    if method in _ABOUT_MODEL and name:
        return Kind.MODEL, name, str(_first(fields, "version"))
    return (Kind.PER_SERVER if _PER_SERVER.fullmatch(method) else Kind.SERVER), "", ""


def _rest_call(path: str) -> tuple[Kind, str, str]:
    if _PER_SERVER.fullmatch(path):
        return Kind.PER_SERVER, "", ""
    match = _REST_MODEL.fullmatch(path)
    if match is None or match["model"] == "stats":
        return Kind.SERVER, "", ""
    kind = {"infer": Kind.INFERENCE, "generate": Kind.INFERENCE, "generate_stream": Kind.STREAM}
    return kind.get(match["verb"] or "", Kind.MODEL), unquote(match["model"]), match["version"] or ""


def _first(fields: Mapping[str, Sequence[object]], path: str) -> object:
    values = fields.get(path)
    return values[0] if values else ""


def _rows(fields: Mapping[str, Sequence[object]]) -> float:
    """The first dimension of the first input: the batch of a model that batches, and a guess for one that does not."""
    return max(_number(_first(fields, "inputs.shape")) or 1.0, 1.0)


def _number(value: object) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _parameters(fields: Mapping[str, Sequence[object]]) -> Iterator[tuple[str, object]]:
    """Known parameters and their values.

    The kind of a custom key is unknown. While all keys are known, values are told apart exactly; with a custom key
    among them a value is taken only from a list whose length leaves no doubt, that is, all keys of that kind are known.
    """
    keys = [str(key) for key in fields["parameters.key"]]
    lists = {kind: list(fields.get(f"parameters.value.{kind}", ())) for kind in _PARAMETER_KINDS}
    kinds = {key: _KIND[key] for key in keys if key in _KIND}
    if "sequence_id" in keys:
        # An integer or a string, by the client's choice: a string where no integer is left over for it.
        integers = sum(kind == "int64_param" for kind in kinds.values())
        kinds["sequence_id"] = "int64_param" if len(lists["int64_param"]) > integers else "string_param"
    for kind, values in lists.items():
        mine = [key for key in keys if kinds.get(key) == kind]
        if len(mine) == len(values):
            yield from zip(mine, values, strict=True)


_PARAMETER_KINDS = ("bool_param", "int64_param", "uint64_param", "string_param")


def _deadline_s(headers: Mapping[str, str], names: HeaderNames, parameters: Mapping[str, object]) -> float:
    """The tightest of gRPC's timeout, Triton's (microseconds in the queue) and the header's."""
    candidates = [math.inf]
    timeout = headers.get("grpc-timeout", "")
    if timeout and timeout[:-1].isdigit() and timeout[-1] in _TIMEOUT_UNITS_S:
        candidates.append(int(timeout[:-1]) * _TIMEOUT_UNITS_S[timeout[-1]])
    microseconds = _number(parameters.get("timeout"))
    if microseconds:
        candidates.append(microseconds * 1e-6)
    milliseconds = _number(headers.get(names.deadline))
    if milliseconds is not None and milliseconds > 0:
        candidates.append(milliseconds * 1e-3)
    return min(candidates)
