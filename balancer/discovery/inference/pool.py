"""What one InferencePool says: which pods it has, by which ports.

Everything here was written by whoever may create pools, so each value has bounds.

Source: https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from balancer.discovery.cluster.api import MAX_SELECTOR_CHARACTERS, Resource
from balancer.discovery.pods.pod import HeldPorts
from balancer.discovery.workers import Ports
from balancer.files.schema import shown

GROUP = "inference.networking.k8s.io"
POOLS = Resource(
    f"{GROUP}/v1",
    "inferencepools",
    "install the Gateway API Inference Extension's kinds, or name pods by label_selector in place of inference_pool",
)
_H2C = "kubernetes.io/h2c"
_PROTOCOLS = {_H2C: 0, "http": 1}
"""By `appProtocol` the place of the port in `Ports`."""
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


class PoolRefusedError(Exception):
    """What the pool says cannot be used: field, value and remedy."""


@dataclass(frozen=True, slots=True)
class Pool:
    label_selector: str
    ports: HeldPorts
    """Of both the one that the pool names, or both."""


def read_pool(found: Any, ports: Ports) -> Pool:
    """The pool of the API's JSON; `ports`: the config's, by which a port is known for gRPC's or HTTP's.

    Raises:
        PoolRefusedError: it says something else than which pods have one Triton each.
    """
    spec = _mapping("spec", _mapping("the pool", found).get("spec"))
    return Pool(_selector(spec), _ports(spec, ports))


def _selector(spec: Mapping[str, Any]) -> str:
    field = "selector.matchLabels"
    labels = _mapping(field, _mapping("selector", spec.get("selector")).get("matchLabels"))
    if not labels:
        raise PoolRefusedError(f"{field} is empty, so that every pod would be a worker; name a label")
    for key, value in labels.items():
        if not _KEY.fullmatch(key) or not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise PoolRefusedError(f"{field}: {shown(key)}: {shown(value)} is no label of Kubernetes; correct it")
    selector = ",".join(f"{key}={labels[key]}" for key in sorted(labels))
    if len(selector) > MAX_SELECTOR_CHARACTERS:
        raise PoolRefusedError(f"{field} has more than {MAX_SELECTOR_CHARACTERS} characters; name fewer labels")
    return selector


def _ports(spec: Mapping[str, Any], ports: Ports) -> HeldPorts:
    targets = spec.get("targetPorts")
    numbers = [_number(target) for target in targets] if isinstance(targets, list) else []
    if not numbers:
        raise PoolRefusedError(f"targetPorts: {shown(targets)} names no port; name Triton's gRPC or HTTP port")
    if sorted(numbers) == sorted(ports):
        return ports
    if len(numbers) > 1:
        listed = ", ".join(map(str, numbers[:8]))
        rule = f"several are taken only where they are the gRPC and the HTTP port, {ports[0]} and {ports[1]}"
        raise PoolRefusedError(f"targetPorts: {listed}: a pod is one worker; {rule}; name one")
    (number,) = numbers
    protocol = spec.get("appProtocol") or "http"
    if number in ports:
        place = ports.index(number)
    elif isinstance(protocol, str) and protocol in _PROTOCOLS:
        place = _PROTOCOLS[protocol]
    else:
        raise PoolRefusedError(f"appProtocol: {shown(protocol)} is not allowed: must be http or {_H2C}")
    return (number, None) if place == 0 else (None, number)


def _number(target: Any) -> int:
    number = _mapping("targetPorts", target).get("number")
    if type(number) is not int or not 1 <= number <= 65535:
        raise PoolRefusedError(f"targetPorts: {shown(number)} is not allowed: must be a port from 1 to 65535")
    return number


def _mapping(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PoolRefusedError(f"{field}: {shown(value)} is not allowed: must be a mapping")
    return value
