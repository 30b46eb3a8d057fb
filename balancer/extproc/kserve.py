"""What a request asks for, read from headers and from the fields that Envoy extracted; never from a body.

A pure translation from the KServe v2 protocol (gRPC and REST) to the router's `Request`, and the gate for all that a
client can say: what passes is within `balancer.bounds`. What each front of the protocol can tell without its body,
and the headers that stand in for the rest, is tabled in the README beside this.
"""

import enum
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import unquote

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.discovery.workers import PortName
from balancer.extproc.names import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    FAIRNESS_HEADER,
    GATEWAY_MODEL_HEADER,
    GATEWAY_REQUEST_ID_HEADER,
    MODELS,
    OBJECTIVE_HEADER,
    REQUEST_ID_HEADER,
)
from policies.base import Prefix, Request
from policies.hashing import key_of, mix

SERVICE = "/inference.GRPCInferenceService/"
TIMEOUT_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# At most eight digits: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
HEALTH = "/grpc.health.v1.Health/"
REST_SERVER = {"/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index"}

# Parameters of a request that concern routing, by the kind that Triton's clients give each. Envoy hands over keys and
# values as one list for each kind, in order, so a value is found by counting the keys of its kind before it.
KIND_OF_PARAMETER = {
    "sequence_start": "bool_param",
    "sequence_end": "bool_param",
    "binary_data_output": "bool_param",
    "triton_enable_empty_final_response": "bool_param",
    "timeout": "int64_param",
    "priority": "uint64_param",
}
_PARAMETER_KINDS = ("bool_param", "int64_param", "uint64_param", "string_param")


_LENGTH_DIGITS = 15
_PLAIN = "identity"
"""`grpc-encoding` of messages that are not compressed."""


class Kind(enum.Enum):
    INFERENCE = "inference"
    STREAM = "stream"
    """A stream of inferences; all of it goes to one worker, and its duration is no latency."""
    MODEL = "model"
    SERVER = "server"
    """About a server: any will do."""
    PER_SERVER = "per_server"
    """Whatever else there is: it changes one server (load a model, register memory), so balancing it would be a
    surprise, or it is not known here."""


# gRPC's methods, and what may stand after a model in a path of REST; alone, the path is about the model.
METHODS = {
    "ModelInfer": Kind.INFERENCE,
    "ModelStreamInfer": Kind.STREAM,
    **dict.fromkeys(("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"), Kind.MODEL),
    **dict.fromkeys(("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"), Kind.SERVER),
}
# Methods of `Kind.PER_SERVER` that a balancer answers where it speaks for the fleet.
SETTINGS = ("TraceSetting", "LogSettings")
"""Read, or changed by a message that has some."""
MEMORY_STATUS = ("SystemSharedMemoryStatus", "CudaSharedMemoryStatus")
CHANGES = (
    *("RepositoryModelLoad", "RepositoryModelUnload"),
    *("SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
)
REST_VERBS = {
    "infer": Kind.INFERENCE,
    "generate": Kind.INFERENCE,
    "generate_stream": Kind.STREAM,
    **dict.fromkeys(("ready", "config", "stats"), Kind.MODEL),
}
_REST_MODEL = re.compile(
    rf"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/(?P<verb>{'|'.join(REST_VERBS)}))?/?"
)


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The headers that may carry what cannot be had without the body; lower case. None: no header may."""

    model: str | None = None
    rows: str | None = "x-batch-rows"
    key: str | None = "x-routing-key"
    sequence: str | None = "x-sequence-id"
    priority: str | None = "x-priority"
    tenant: str | None = "x-tenant"
    deadline: str | None = "x-deadline-ms"


Objectives = Mapping[str, int]
"""Priorities, as Triton numbers them, by the name of an InferenceObjective, and by `NO_OBJECTIVE`."""
NO_OBJECTIVE = ""
"""Stands for requests that name no objective, or one that is not known."""


@dataclass(frozen=True, slots=True)
class Call:
    kind: Kind
    request: Request
    grpc: bool
    request_id: str
    """x-request-id, which is the client's own where it sends one; Triton gets the same header."""
    gateway_id: str
    """`GATEWAY_REQUEST_ID_HEADER`; empty where the gateway is not ours."""
    triton_request_id: str
    """The id in the message, which Triton puts into its log and its errors; empty where the client gave none."""
    path: str = ""
    compressed: bool = False
    """Whether gRPC's messages may be."""
    message_rows: int = 1
    openai: bool = False
    """Whether it is for workers that speak OpenAI's API."""

    @property
    def port(self) -> PortName:
        """The port of a worker that takes it."""
        return "grpc" if self.grpc else "openai" if self.openai else "http"

    @property
    def has_prompt(self) -> bool:
        return bool(self.request.prompt_tokens)

    @property
    def streams_tokens(self) -> bool:
        """Whether a language model answers it piece by piece."""
        return self.kind is Kind.STREAM and self.has_prompt

    def with_prompt(self, tokens: float, prefix: Prefix) -> "Call":
        return replace(self, request=replace(self.request, prompt_tokens=tokens, prefix=prefix))


def declared_bytes(headers: Mapping[str, str]) -> int:
    """What a request says that its body has; 0 where it says nothing that can be."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS else 0


def is_openai(path: str) -> bool:
    """Whether the path, which may have a query, is one of those that Envoy routes to servers of OpenAI's API."""
    return path.partition("?")[0] in (CHAT, COMPLETIONS, EMBEDDINGS, MODELS)


def port_of(headers: Mapping[str, str]) -> PortName:
    """The kind of port of a worker that takes a request with such headers."""
    return "grpc" if is_grpc(headers) else "openai" if is_openai(headers.get(":path", "")) else "http"


def is_grpc(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith("application/grpc")


def read_call(
    headers: Mapping[str, str],
    fields: Mapping[str, Sequence[object]],
    names: HeaderNames,
    objectives: Objectives | None = None,
) -> Call:
    """Understand one call.

    Args:
        headers: Of the request, names in lower case, pseudo-headers included.
        fields: What Envoy extracted: lists of values by field path, empty for REST and for other gateways.
        names: Of the headers that stand in for fields.
        objectives: Of a gateway other than our own Envoy, whose headers of the Gateway API Inference Extension are read
            too; None: they are not.

    A header can narrow and never widen: what the message or the path says of model and sequence holds, the less
    important priority and the tighter deadline count. Rows are the header's, since the message has only a guess.

    Raises:
        OutOfBoundsError: a value that is not within bounds, or a header of ours that cannot be read.
    """
    path = headers.get(":path", "").partition("?")[0]
    grpc = is_grpc(headers)
    objective = 0
    if objectives is not None:
        names = _with_extension(headers, names)
        without = objectives.get(NO_OBJECTIVE, 0)
        objective = objectives.get(_header(headers, OBJECTIVE_HEADER), without)
    if not grpc and path in (CHAT, COMPLETIONS, EMBEDDINGS):
        # Without its body: a header has to name the model.
        return call_of(headers, names, Kind.INFERENCE, "", objective=objective)
    kind, model, version = _grpc_call(path, fields) if grpc else rest_call(path)
    return call_of(headers, names, kind, model, version, fields, objective=objective)


def call_of(
    headers: Mapping[str, str],
    names: HeaderNames,
    kind: Kind,
    model: str,
    version: str = "",
    fields: Mapping[str, Sequence[object]] = MappingProxyType({}),
    *,
    objective: int = 0,
    rows: int = 0,
) -> Call:
    """A call whose model is known, with what its headers say; as in `read_call`.

    Args:
        headers: As there, as `names` and `fields`.
        names: Of headers.
        kind: What it asks for.
        model: Empty: not known, or of none.
        version: Empty: any.
        fields: None of OpenAI's API.
        objective: Its priority, as another gateway has it.
        rows: That its body tells of; 0: as `fields` have it.
    """
    grpc = is_grpc(headers)
    if kind is Kind.PER_SERVER:
        return Call(kind, Request(model=""), grpc, "", "", "")
    parameters = dict(_parameters(fields)) if fields.get("parameters.key") else {}
    if kind is not Kind.SERVER:
        model = bounds.text("model", model or _header(headers, names.model))
        if not model:
            # A worker picked for no model in particular would be one that the model table may forbid.
            raise OutOfBoundsError("model", model, "is not empty; where the gateway does not tell it, a header has to")
    sequence_id = bounds.text("sequence_id", str(parameters.get("sequence_id", ""))) or _header(headers, names.sequence)
    in_sequence = sequence_id not in {"", "0"}
    message_rows = rows or guessed_rows(fields)
    key = _header(headers, names.key)
    request = Request(
        model=model,
        version=bounds.text("version", version),
        rows=_whole_header(headers, names.rows, 1, bounds.MAX_ROWS) or message_rows,
        key=sequence_key(model, sequence_id) if in_sequence else key_of(key) if key else None,
        deadline_s=_deadline_s(headers, names, parameters),
        priority=max(_priority(parameters), _whole_header(headers, names.priority, 0, bounds.MAX_PRIORITY), objective),
        tenant=_header(headers, names.tenant),
        sequence=in_sequence,
    )
    return Call(
        kind,
        request,
        grpc,
        _header(headers, REQUEST_ID_HEADER),
        _header(headers, GATEWAY_REQUEST_ID_HEADER),
        bounds.text("id", str(_first(fields, "id"))),
        headers.get(":path", ""),
        grpc and headers.get("grpc-encoding", _PLAIN) != _PLAIN,
        message_rows,
        port_of(headers) == "openai",
    )


def _with_extension(headers: Mapping[str, str], names: HeaderNames) -> HeaderNames:
    return replace(
        names,
        model=names.model if names.model in headers else GATEWAY_MODEL_HEADER,
        tenant=names.tenant if names.tenant in headers else FAIRNESS_HEADER,
    )


def sequence_key(model: str, sequence_id: str) -> int:
    """The key that places a sequence; sequences of different models are different."""
    return mix(key_of(model) ^ key_of(sequence_id))


def _grpc_call(path: str, fields: Mapping[str, Sequence[object]]) -> tuple[Kind, str, str]:
    if path.startswith(HEALTH):
        return Kind.SERVER, "", ""
    method = path.removeprefix(SERVICE) if path.startswith(SERVICE) else ""
    kind = METHODS.get(method, Kind.PER_SERVER)
    if kind is Kind.INFERENCE or kind is Kind.STREAM:
        return kind, str(_first(fields, "model_name")), str(_first(fields, "model_version"))
    if kind is Kind.MODEL:
        # Without a name, Triton answers for all of its models: then any server will do.
        name = str(_first(fields, "name"))
        return (Kind.MODEL, name, str(_first(fields, "version"))) if name else (Kind.SERVER, "", "")
    return kind, "", ""


def rest_call(path: str) -> tuple[Kind, str, str]:
    decoded = unquote(path)
    if decoded.count("/") != path.count("/") or not decoded.isprintable():
        # A slash within a name is a path of another call to whoever decodes it earlier.
        return Kind.PER_SERVER, "", ""
    if decoded.removesuffix("/") in REST_SERVER:
        return Kind.SERVER, "", ""
    match = _REST_MODEL.fullmatch(decoded)
    if match is None:
        return Kind.PER_SERVER, "", ""
    return REST_VERBS.get(match["verb"], Kind.MODEL), match["model"], match["version"] or ""


def _first(fields: Mapping[str, Sequence[object]], path: str) -> object:
    values = fields.get(path)
    return values[0] if values else ""


def _header(headers: Mapping[str, str], name: str | None) -> str:
    return "" if name is None else bounds.text(name, headers.get(name, ""))


def _whole_header(headers: Mapping[str, str], name: str | None, least: int, most: int) -> int:
    """0 where the header is absent, empty, or not to be read."""
    value = "" if name is None else headers.get(name, "").strip()
    if not value:
        return 0
    if not _WHOLE.fullmatch(value) or not least <= int(value) <= most:
        raise OutOfBoundsError(str(name), value, f"is a whole number from {least} to {most}")
    return int(value)


def guessed_rows(fields: Mapping[str, Sequence[object]]) -> int:
    """The first dimension of the first input: the batch of a model that batches.

    One too large for a batch is the length of an input without a batch axis, and says nothing.
    """
    rows = str(_first(fields, "inputs.shape"))
    number = int(rows) if _WHOLE.fullmatch(rows) else 1
    return number if 1 <= number <= bounds.MAX_ROWS else 1


def _parameter(parameters: Mapping[str, object], name: str, most: int) -> int:
    value = str(parameters.get(name, ""))
    # Other gateways may hand numbers over as such.
    value = value.removesuffix(".0")
    if not _WHOLE.fullmatch(value) or int(value) < 0:
        return 0
    if int(value) > most:
        raise OutOfBoundsError(name, value, f"is a whole number from 0 to {most}")
    return int(value)


def _priority(parameters: Mapping[str, object]) -> int:
    return _parameter(parameters, "priority", bounds.MAX_PRIORITY)


def _parameters(fields: Mapping[str, Sequence[object]]) -> Iterator[tuple[str, object]]:
    """Known parameters and their values.

    The kind of a custom key is unknown. While all keys are known, values are told apart exactly; with a custom key
    among them a value is taken only from a list whose length leaves no doubt, that is, all keys of that kind are known.
    """
    keys = [str(key) for key in fields["parameters.key"]]
    if len(keys) > bounds.MAX_PARAMETERS:
        raise OutOfBoundsError("parameters", len(keys), f"counts {bounds.MAX_PARAMETERS} at most")
    lists = {kind: list(fields.get(f"parameters.value.{kind}", ())) for kind in _PARAMETER_KINDS}
    kinds = {key: KIND_OF_PARAMETER[key] for key in keys if key in KIND_OF_PARAMETER}
    if "sequence_id" in keys:
        # An integer or a string, by the client's choice: a string where no integer is left over for it.
        integers = sum(kind == "int64_param" for kind in kinds.values())
        kinds["sequence_id"] = "int64_param" if len(lists["int64_param"]) > integers else "string_param"
    for kind, values in lists.items():
        mine = [key for key in keys if kinds.get(key) == kind]
        if len(mine) == len(values):
            yield from zip(mine, values, strict=True)


def _deadline_s(headers: Mapping[str, str], names: HeaderNames, parameters: Mapping[str, object]) -> float:
    """The tightest of gRPC's timeout, Triton's (microseconds in the queue) and the header's."""
    candidates = [math.inf]
    timeout = headers.get("grpc-timeout", "")
    if timeout:
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            raise OutOfBoundsError("grpc-timeout", timeout, "has 1 to 8 digits and a unit of H, M, S, m, u or n")
        candidates.append(int(match[1]) * TIMEOUT_UNITS_S[match[2]])
    microseconds = _parameter(parameters, "timeout", 2**63 - 1)
    if microseconds:
        candidates.append(microseconds * 1e-6)
    milliseconds = "" if names.deadline is None else headers.get(names.deadline, "").strip()
    if milliseconds:
        if not _NUMBER.fullmatch(milliseconds) or not 0 < float(milliseconds) <= bounds.MAX_DEADLINE_S * 1000:
            most = f"{bounds.MAX_DEADLINE_S * 1000:.0f}"
            raise OutOfBoundsError(str(names.deadline), milliseconds, f"is a number above 0, and {most} at most")
        candidates.append(float(milliseconds) * 1e-3)
    return min(candidates)
