"""Objects of the Gateway API Inference Extension, and their kinds as its release has them, as far as they are read."""

from typing import Any

from support.kubernetes_api import definition

POOLS, OBJECTIVES = "inference.networking.k8s.io/v1", "inference.networking.x-k8s.io/v1alpha2"


def pool(name: str = "triton", *ports: int, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pool with these target ports; `spec`: more of it, or in place of what it has."""
    found = {
        "selector": {"matchLabels": labels or {"app": "triton"}},
        "targetPorts": [{"number": port} for port in ports or (8001,)],
        "endpointPickerRef": {"name": "balancer", "port": {"number": 9002}},
    }
    return {"apiVersion": POOLS, "kind": "InferencePool", "metadata": {"name": name}, "spec": {**found, **spec}}


def objective(name: str, priority: int | None, of: str = "triton", **reference: Any) -> dict[str, Any]:
    """One of a pool; `reference`: more of `poolRef`."""
    spec: dict[str, Any] = {"poolRef": {"name": of, **reference}}
    if priority is not None:
        spec["priority"] = priority
    return {"apiVersion": OBJECTIVES, "kind": "InferenceObjective", "metadata": {"name": name}, "spec": spec}


def _with_spec(**spec: Any) -> dict[str, Any]:
    return {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", **spec}}}


_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_TEXT = {"type": "string"}
KINDS = (
    definition(
        POOLS,
        "InferencePool",
        _with_spec(
            required=["selector", "targetPorts"],
            properties={
                "selector": {
                    "type": "object",
                    "required": ["matchLabels"],
                    "properties": {"matchLabels": {"type": "object", "additionalProperties": _TEXT}},
                },
                "targetPorts": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 8,
                    "items": {"type": "object", "required": ["number"], "properties": {"number": _PORT}},
                },
                "appProtocol": {**_TEXT, "enum": ["http", "kubernetes.io/h2c"], "default": "http"},
                "endpointPickerRef": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        ),
    ),
    definition(
        OBJECTIVES,
        "InferenceObjective",
        _with_spec(
            required=["poolRef"],
            properties={
                "priority": {"type": "integer"},
                "poolRef": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "group": {**_TEXT, "default": POOLS.partition("/")[0]},
                        "kind": {**_TEXT, "default": "InferencePool"},
                        "name": _TEXT,
                    },
                },
            },
        ),
    ),
)
"""Definitions that are enough for what is read."""
