"""What one pod says: a worker and its state, or why it is none.

Everything here was written by whoever may create pods, so each value has bounds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ByteSize, TypeAdapter, ValidationError

from balancer.discovery.workers import PROTOCOLS, ZONE, Ports, WorkerSpec
from balancer.files.schema import did_you_mean, shown

PREFIX = "balancer/"
ZONE_LABEL = "topology.kubernetes.io/zone"
"""Of a pod: newer Kubernetes copies it from the pod's node."""
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
MAX_MEMORY_BYTES = 2**50
_MAX_INVALID = 8
_MAX_NUMBER = 40
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._ -]{0,61}[A-Za-z0-9])?")
_SIZE: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)

State = Literal["ready", "not_ready", "terminating", "not_running", "refused"]
"""`ready`: Running and Ready; `not_ready`: Running and not Ready; `terminating`: with a deletion timestamp and not
ended yet; `not_running`: Pending, ended, or without an address; `refused`: what it says of where it listens is not
usable."""


HeldPorts = tuple[int | None, int | None]
"""gRPC and HTTP port that hold whatever a pod says; None: the pod may say."""
FREE: HeldPorts = (None, None)


class MalformedError(Exception):
    """What came is not a pod."""


@dataclass(frozen=True, slots=True)
class InvalidValue:
    field: str
    """The annotation without prefix, or the field of the pod; bounded, for a metric: `unknown` for unknown ones."""
    text: str
    """Annotation, value, what is allowed and what becomes of the pod."""


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    created: str
    """RFC 3339 in UTC: sorts by time."""
    state: State
    was_ready: bool
    """Whether its Ready condition is true now; one that terminates may still be."""
    worker: WorkerSpec | None
    """None where it is `not_running` or `refused`."""
    invalid_values: tuple[InvalidValue, ...] = ()


def read_pod(pod: Any, ports: Ports, held: HeldPorts = FREE) -> Pod:
    """The pod of the API's JSON; `ports`: where it listens if it does not say.

    Raises:
        MalformedError: it is no pod.
    """
    try:
        return _read(pod, ports, held)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"{type(error).__name__}: {error}"[:200]) from error


def _read(pod: Mapping[str, Any], ports: Ports, held: HeldPorts) -> Pod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    name, uid, created = metadata["name"], metadata["uid"], metadata.get("creationTimestamp") or ""
    if not all(isinstance(text, str) for text in (name, uid, created)):
        raise TypeError("name, uid and creationTimestamp must be text")
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    ready = conditions.get("Ready") == "True"
    address = status.get("podIP") or ""
    if status.get("phase") not in ("Running", "Unknown") or not address:
        return Pod(name, uid, created, "not_running", False, None)
    state: State = "ready" if ready else "not_ready"
    if metadata.get("deletionTimestamp"):
        state = "terminating"
    annotations = _Annotations(metadata)
    protocol = annotations.get("protocol", "triton", _UNUSABLE)
    if any(invalid.field == "protocol" for invalid in annotations.invalid_values):
        return Pod(name, uid, created, "refused", ready, None, tuple(annotations.invalid_values[:_MAX_INVALID]))
    worker = _worker(name, address, _ports(pod, ports, held, annotations), annotations, protocol)
    state = "refused" if worker is None else state
    return Pod(name, uid, created, state, ready, worker, tuple(annotations.invalid_values[:_MAX_INVALID]))


class _Annotations:
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
        self._settings = {**labels, **annotations}
        self.invalid_values: list[InvalidValue] = []
        for key in sorted(annotations):
            if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in READERS:
                hint = did_you_mean(key, (PREFIX + known for known in READERS))
                self._invalid("unknown", f"annotation {shown(key)} is unknown; {hint}")

    def get(self, name: str, otherwise: Any, remedy: str = "the pod is taken without it") -> Any:
        """The value of an annotation; `otherwise` where it is missing or does not fit."""
        text = self._settings.get(PREFIX + name)
        if text is None:
            return otherwise
        read, rule = READERS[name]
        value = read(text) if isinstance(text, str) else None
        if value is None:
            self._invalid(name, f"annotation {PREFIX}{name}: {shown(text)} is not allowed: must be {rule}; {remedy}")
            return otherwise
        return value

    def label(self, name: str) -> str:
        """The value of a label that Kubernetes itself sets; empty where it is missing or does not fit."""
        return _zone(str(self._settings.get(name, ""))) or ""

    def refuse(self, field: str, value: Any, rule: str) -> None:
        """Complain of what makes a pod useless."""
        self._invalid(field, f"{field}: {shown(value)} is not allowed: {rule}; the pod is left out")

    def _invalid(self, field: str, text: str) -> None:
        self.invalid_values.append(InvalidValue(field, text))


def _ports(
    pod: Mapping[str, Any], ports: Ports, held: HeldPorts, metadata: _Annotations
) -> tuple[int | None, int | None]:
    """What holds whatever the pod says, else its annotation, else its container port of that name, else the default;
    None: an annotation that does not fit."""
    named = {
        port.get("name"): port["containerPort"]
        for container in (pod.get("spec") or {}).get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("protocol", "TCP") == "TCP"
    }

    def port(kind: str, default: int, holds: int | None) -> int | None:
        if holds is not None:
            return holds
        annotated = metadata.get(f"{kind}-port", -1, _UNUSABLE)
        if annotated != -1:
            return int(annotated)
        if any(invalid.field == f"{kind}-port" for invalid in metadata.invalid_values):
            return None
        found = named.get(kind, default)
        return found if type(found) is int else None

    return port("grpc", ports[0], held[0]), port("http", ports[1], held[1])


def _worker(
    name: str, address: str, ports: tuple[int | None, int | None], metadata: _Annotations, protocol: str
) -> WorkerSpec | None:
    fields = {
        "protocol": protocol,
        "weight": metadata.get("weight", 1.0),
        "device": metadata.get("device", ""),
        "memory_bytes": metadata.get("memory-bytes", ByteSize(0)),
        "draining": metadata.get("draining", False),
        "zone": metadata.get("zone", metadata.label(ZONE_LABEL)),
    }
    if not is_of_a_pod(address):
        metadata.refuse("podIP", address, "must be an address that other pods reach")
        return None
    grpc_port, http_port = ports
    if grpc_port is None or http_port is None:
        return None
    if grpc_port == http_port and protocol == "triton":
        metadata.refuse("http-port", http_port, "is the gRPC port too")
        return None
    try:
        return WorkerSpec(name=name, address=address, grpc_port=grpc_port, http_port=http_port, **fields)
    except ValidationError as error:
        first = error.errors()[0]
        metadata.refuse("pod", first["input"], f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        return None


def is_of_a_pod(address: str) -> bool:
    """As Kubernetes itself rules for Endpoints: otherwise a pod could lead requests to the balancer's own machine."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return not (ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_link_local)


def _weight(text: str) -> float | None:
    if len(text) > _MAX_NUMBER:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if MIN_WEIGHT <= value <= MAX_WEIGHT else None


def _device(text: str) -> str | None:
    return text if _DEVICE.fullmatch(text) else None


def _zone(text: str) -> str | None:
    return text if re.fullmatch(ZONE, text) else None


def _memory(text: str) -> ByteSize | None:
    if len(text) > _MAX_NUMBER:
        return None
    try:
        value = _SIZE.validate_python(text)
    except (ValidationError, OverflowError):
        return None
    return value if 0 <= value <= MAX_MEMORY_BYTES else None


def _flag(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _port(text: str) -> int | None:
    fits = len(text) <= 5 and text.isascii() and text.isdigit() and 1 <= int(text) <= 65535
    return int(text) if fits else None


_UNUSABLE = "the pod is left out until it does"
_A_PORT = "a port from 1 to 65535"
READERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "weight": (_weight, f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"),
    "device": (_device, "at most 63 letters, digits, spaces and . _ -"),
    "memory-bytes": (_memory, 'a number of bytes, or text such as "40GiB", up to 1PiB'),
    "zone": (_zone, "at most 63 letters, digits and . _ -"),
    "draining": (_flag, '"true" or "false"'),
    "protocol": (lambda text: text if text in PROTOCOLS else None, " or ".join(PROTOCOLS)),
    "grpc-port": (_port, _A_PORT),
    "http-port": (_port, _A_PORT),
}
"""By annotation, without prefix: reads the text, None where it does not fit; what is allowed."""
