"""What a pod says: a worker and its state, or why it is none."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pods import pod

from balancer.discovery import pods
from balancer.discovery.pods.pod import PREFIX, READERS, MalformedError, Pod, read_pod
from balancer.discovery.workers import WorkerSpec

PORTS = (8001, 8000)


def read(**more: Any) -> Pod:
    return read_pod(pod("triton-0", **more), PORTS)


def annotated(**annotations: str) -> Pod:
    return read(annotations={PREFIX + name.replace("_", "-"): value for name, value in annotations.items()})


def test_a_pod_that_says_nothing() -> None:
    found = read()
    assert found.worker == WorkerSpec(name="triton-0", address="10.0.0.1", grpc_port=8001, http_port=8000)
    assert (found.state, found.was_ready, found.invalid_values) == ("ready", True, ())


def test_everything_that_a_pod_may_say() -> None:
    found = annotated(
        weight="0.5", device="NVIDIA A100", memory_bytes="40GiB", draining="true", grpc_port="9001", http_port="9000"
    )
    assert found.worker == WorkerSpec(
        name="triton-0",
        address="10.0.0.1",
        grpc_port=9001,
        http_port=9000,
        weight=0.5,
        device="NVIDIA A100",
        memory_bytes="40GiB",
        draining=True,
    )
    assert found.invalid_values == ()


def test_a_pod_that_speaks_openai_has_one_port() -> None:
    found = annotated(protocol="openai", http_port="8001")
    assert found.worker is not None
    assert found.worker.endpoints == {"openai": "10.0.0.1:8001"}
    refused = annotated(protocol="grpc")
    assert (refused.state, refused.worker) == ("refused", None)
    assert (
        'balancer/protocol: "grpc" is not allowed: must be triton or openai; the pod' in refused.invalid_values[0].text
    )


def test_labels_say_the_same_and_annotations_win() -> None:
    labels = {"balancer/device": "L4", "balancer/weight": "2"}
    found = read(labels=labels, annotations={"balancer/weight": "3"}).worker
    assert found is not None
    assert (found.device, found.weight) == ("L4", 3.0)


def test_ports_by_annotation_then_by_name_then_by_config() -> None:
    ports = {"grpc": 7001, "metrics": 8002}
    assert read(ports=ports).worker.grpc_endpoint == "10.0.0.1:7001"
    assert read(ports=ports).worker.http_endpoint == "10.0.0.1:8000"
    found = read(ports=ports, annotations={"balancer/grpc-port": "6001"}).worker
    assert found is not None
    assert found.grpc_endpoint == "10.0.0.1:6001"


def test_a_port_that_a_pool_names_holds_whatever_the_pod_says() -> None:
    says = {"ports": {"grpc": 7001, "http": 7000}, "annotations": {"balancer/grpc-port": "none"}}
    worker = read_pod(pod("triton-0", **says), PORTS, (9001, None)).worker
    assert worker is not None
    assert (worker.grpc_port, worker.http_port) == (9001, 7000)
    both = read_pod(pod("triton-0", **says), PORTS, (9001, 9000)).worker
    assert both is not None
    assert (both.grpc_port, both.http_port) == (9001, 9000)


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "ready"),
        ({"address": "fd00::7"}, "ready"),
        ({"ready": False}, "not_ready"),
        ({"phase": "Unknown", "ready": False}, "not_ready"),
        ({"deleted": True}, "terminating"),
        ({"deleted": True, "ready": False}, "terminating"),
        ({"phase": "Pending"}, "not_running"),
        ({"phase": "Succeeded"}, "not_running"),
        ({"phase": "Failed", "deleted": True}, "not_running"),
        ({"address": ""}, "not_running"),
        ({"address": "127.0.0.1"}, "refused"),
        ({"address": "::ffff:127.0.0.1"}, "refused"),
        ({"address": "169.254.169.254"}, "refused"),
        ({"address": "fe80::1"}, "refused"),
        ({"address": "0.0.0.0"}, "refused"),
        ({"address": "triton.svc"}, "refused"),
        ({"ports": {"grpc": 8000}}, "refused"),
        ({"ports": {"grpc": 99999}}, "refused"),
    ],
)
def test_states(more: dict[str, Any], state: str) -> None:
    found = read(**more)
    assert found.state == state
    assert (found.worker is None) == (state in ("not_running", "refused"))
    assert bool(found.invalid_values) == (state == "refused")


def test_a_pod_without_a_ready_condition_is_not_ready() -> None:
    bare = pod("triton-0")
    del bare["status"]["conditions"]
    assert read_pod(bare, PORTS).state == "not_ready"
    del bare["status"]
    assert read_pod(bare, PORTS).state == "not_running"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("weight", "much", "must be a number from 0.01 to 100"),
        ("weight", "nan", "must be a number from 0.01 to 100"),
        ("weight", "1e300", "must be a number from 0.01 to 100"),
        ("weight", "0", "must be a number from 0.01 to 100"),
        ("weight", "1" * 500, "must be a number from 0.01 to 100"),
        ("device", "A100\nlevel=error", "must be at most 63 letters, digits, spaces and . _ -"),
        ("device", "x" * 64, "must be at most 63 letters, digits, spaces and . _ -"),
        ("device", "", "must be at most 63 letters, digits, spaces and . _ -"),
        ("memory-bytes", "40 apples", 'must be a number of bytes, or text such as "40GiB", up to 1PiB'),
        ("memory-bytes", "2PiB", 'must be a number of bytes, or text such as "40GiB", up to 1PiB'),
        ("memory-bytes", "9" * 39 + "B", 'must be a number of bytes, or text such as "40GiB", up to 1PiB'),
        ("zone", "eu 1a", "must be at most 63 letters, digits and . _ -"),
        ("zone", "z" * 64, "must be at most 63 letters, digits and . _ -"),
        ("draining", "yes", 'must be "true" or "false"'),
    ],
)
def test_a_pod_is_taken_without_a_value_that_does_not_fit(name: str, value: str, rule: str) -> None:
    found = read(annotations={PREFIX + name: value})
    assert found.worker == read().worker
    (invalid,) = found.invalid_values
    assert invalid.field == name
    assert invalid.text.startswith(f"annotation balancer/{name}: ")
    assert invalid.text.endswith(f" is not allowed: {rule}; the pod is taken without it")
    assert "\n" not in invalid.text
    assert len(invalid.text) < 300


def test_the_zone_is_that_of_the_annotation_then_that_of_the_node() -> None:
    node = {"topology.kubernetes.io/zone": "eu-1a"}
    for noted, labels, zone in (
        ({}, {}, ""),
        ({}, node, "eu-1a"),
        ({"balancer/zone": "rack-3"}, node, "rack-3"),
        ({}, {"topology.kubernetes.io/zone": "no zone\n"}, ""),
    ):
        worker = read(annotations=noted, labels=labels).worker
        assert worker is not None
        assert worker.zone == zone


@pytest.mark.parametrize("value", ["0", "65536", "grpc", "-1", "८००१", " 8001", "080001"])
@pytest.mark.parametrize("name", ["grpc-port", "http-port"])
def test_a_pod_with_a_port_that_does_not_fit_is_left_out(name: str, value: str) -> None:
    found = read(annotations={PREFIX + name: value})
    assert found.state == "refused"
    (invalid,) = found.invalid_values
    assert invalid.field == name
    assert invalid.text.endswith("must be a port from 1 to 65535; the pod is left out until it does")


def test_an_unknown_annotation_is_shown_with_the_one_meant() -> None:
    found = read(annotations={"balancer/wieght": "2", "other/weight": "3"}, labels={"balancer/role": "gpu"})
    assert found.worker == read().worker
    (invalid,) = found.invalid_values
    assert invalid.field == "unknown"
    assert invalid.text == 'annotation "balancer/wieght" is unknown; did you mean "balancer/weight"?'


def test_the_chapter_names_every_annotation() -> None:
    chapter = Path(pods.__file__).parents[1] / "README.md"
    assert set(re.findall(r"`balancer/([a-z-]+)`", chapter.read_text())) == set(READERS)


def test_invalid_values_are_bounded() -> None:
    assert len(read(annotations={f"balancer/{number}": "" for number in range(100)}).invalid_values) == 8


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        "pod",
        {},
        {"metadata": {"name": "a"}},
        {"metadata": {"name": 1, "uid": "u"}},
        {"metadata": {"name": "a", "uid": "u"}, "status": "Running"},
        {"metadata": {"name": "a", "uid": "u"}, "status": {"conditions": [[]]}},
    ],
)
def test_what_is_no_pod_is_refused_whole(found: Any) -> None:
    with pytest.raises(MalformedError):
        read_pod(found, PORTS)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["type", "name", "status"]), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.sampled_from(["metadata", "spec", "status"]), st.text() | st.sampled_from(list(pod("a")["metadata"])), json)
def test_no_json_makes_anything_else_than_a_pod_or_a_refusal(section: str, field: str, value: Any) -> None:
    found = pod("a")
    found[section][field] = value
    with contextlib.suppress(MalformedError):
        assert isinstance(read_pod(found, PORTS), Pod)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["podIP", "phase", "conditions"]), json))
def test_no_status_does(status: dict[str, Any]) -> None:
    found = pod("a")
    found["status"].update(status)
    with contextlib.suppress(MalformedError):
        assert isinstance(read_pod(found, PORTS), Pod)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["weight", "device", "memory-bytes", "draining", "grpc-port"]), st.text()))
def test_no_annotation_does(annotations: dict[str, str]) -> None:
    assert isinstance(read(annotations={PREFIX + name: text for name, text in annotations.items()}), Pod)
