"""What an InferencePool says, and what is refused in words."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inference import pool

from balancer.discovery.inference.pool import Pool, PoolRefusedError, read_pool

PORTS = 8001, 8000
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@pytest.mark.parametrize(
    ("ports", "spec", "held"),
    [
        ((8001,), {}, (8001, None)),
        # The server writes the default of the field, so a port that is known goes before it.
        ((8001,), {"appProtocol": "http"}, (8001, None)),
        ((8000,), {"appProtocol": "kubernetes.io/h2c"}, (None, 8000)),
        ((9000,), {}, (None, 9000)),
        ((9000,), {"appProtocol": "http"}, (None, 9000)),
        ((9000,), {"appProtocol": "kubernetes.io/h2c"}, (9000, None)),
        ((8000, 8001), {}, (8001, 8000)),
    ],
)
def test_its_ports_hold(ports: tuple[int, ...], spec: dict[str, Any], held: tuple[int | None, int | None]) -> None:
    assert read_pool(pool("p", *ports, **spec), PORTS).ports == held


def test_its_labels_are_a_selector() -> None:
    labels = {"b.example.com/tier": "", "app": "triton-1.0_a"}
    assert read_pool(pool(labels=labels), PORTS) == Pool("app=triton-1.0_a,b.example.com/tier=", (8001, None))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "the pool: null is not allowed: must be a mapping"),
        ({"spec": 1}, "spec: 1 is not allowed: must be a mapping"),
        (pool(selector={}), "selector.matchLabels: null is not allowed: must be a mapping"),
        (pool(selector={"matchLabels": {}}), "selector.matchLabels is empty, so that every pod would be a worker"),
        (pool(labels={"a": "b,c"}), 'selector.matchLabels: "a": "b,c" is no label of Kubernetes'),
        (pool(labels={"a in (b)": "c"}), '"a in (b)": "c" is no label of Kubernetes'),
        (pool(selector={"matchLabels": {"a": 1}}), '"a": 1 is no label of Kubernetes'),
        (pool(labels={f"a{n}": "b" * 63 for n in range(20)}), "has more than 1024 characters; name fewer labels"),
        (pool(targetPorts=None), "targetPorts: null names no port"),
        (pool(targetPorts=[]), "targetPorts: [] names no port"),
        (pool(targetPorts=[1]), "targetPorts: 1 is not allowed: must be a mapping"),
        (pool(targetPorts=[{"number": True}]), "targetPorts: true is not allowed: must be a port from 1 to 65535"),
        (pool("p", 65536), "targetPorts: 65536 is not allowed"),
        (
            pool("p", 8001, 8002),
            "targetPorts: 8001, 8002: a pod is one worker; several are taken only where they are the gRPC and the HTTP "
            "port, 8001 and 8000; name one",
        ),
        (pool("p", 9000, appProtocol="quic"), 'appProtocol: "quic" is not allowed: must be http or kubernetes.io/h2c'),
        (pool("p", 9000, appProtocol=[1]), "appProtocol: [1] is not allowed"),
    ],
)
def test_what_is_no_pool_is_refused_with_field_value_and_remedy(found: Any, words: str) -> None:
    with pytest.raises(PoolRefusedError) as caught:
        read_pool(found, PORTS)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "selector": ANYTHING | st.fixed_dictionaries({"matchLabels": ANYTHING}),
            "targetPorts": ANYTHING | st.lists(st.fixed_dictionaries({"number": ANYTHING}), max_size=3),
            "appProtocol": ANYTHING,
        },
    )
)
def test_whatever_it_says_is_a_pool_or_refused(spec: dict[str, Any]) -> None:
    with contextlib.suppress(PoolRefusedError):
        found = read_pool(pool(**spec), PORTS)
        assert 0 < len(found.label_selector) <= 1024
        assert all(port is None or 1 <= port <= 65535 for port in found.ports)
