"""What one process tells Envoy and the operator of the workers that discovery lists."""

import asyncio
from pathlib import Path

import pytest
from support.fleets import report
from support.waiting import eventually

from balancer.config.config import Config, from_mapping, load
from balancer.files.yaml_document import ConfigError
from balancer.kernel.settings import SplitSettings
from balancer.scheduler.events import Event
from balancer.server.app import App
from balancer.server.workers import source

NAMES = ("w0", "w1", "w2")


def workers() -> list[dict[str, object]]:
    return [
        {"name": name, "address": "10.0.0.1", "grpc_port": 8001 + 10 * row, "http_port": 8000 + 10 * row}
        for row, name in enumerate(NAMES)
    ]


class EnvoyStates:
    """A process that has listed three workers, and what Envoy is told of them."""

    def __init__(self) -> None:
        self.app = App(from_mapping({"discovery": {"workers": workers()}}), None)
        self.app._discovered(self.app.state.config.discovery.workers)

    def states(self, *events: Event, settled: bool = True) -> list[str]:
        self.app._settled = settled
        for event in events:
            self.app._observe(event)
        self.app._send_endpoints()
        return list(self.app._endpoint_states)


def test_silence_is_no_reason_for_envoy_to_avoid_a_worker_before_there_was_time_to_report() -> None:
    assert EnvoyStates().states(report("w0"), settled=False) == ["healthy", "healthy", "healthy"]


def test_a_silent_worker_is_avoided_while_another_is_ready() -> None:
    assert EnvoyStates().states(report("w0")) == ["healthy", "unhealthy", "unhealthy"]


def test_where_no_agent_reports_envoy_may_use_every_worker() -> None:
    assert EnvoyStates().states() == ["healthy", "healthy", "healthy"]


def test_a_worker_that_says_it_is_not_ready_is_avoided_whatever_the_others_say() -> None:
    states = EnvoyStates()
    assert states.states(report("w0", ready=False)) == ["unhealthy", "healthy", "healthy"]
    assert states.states(report("w1")) == ["unhealthy", "healthy", "unhealthy"]
    assert states.states(report("w1", number=2, ready=False)) == ["unhealthy", "unhealthy", "healthy"]


def test_without_a_file_of_workers_none_is_waited_for() -> None:
    assert App(Config(), None).not_ready() == "discovery: no worker is listed yet"


def test_models_are_split_as_the_config_says_also_when_it_changes() -> None:
    split = {"old": 1, "new": 2, "share": 0.1}
    app = App(from_mapping({"models": {"m": {"split": split}}}), None)
    splits = app._picker.splits
    assert splits.of["m"].settings == SplitSettings("1", "2", 0.1)
    app._accept(from_mapping({"models": {"m": {"split": split | {"share": 0.5}}, "n": {"split": split}}}))
    assert {model: each.share for model, each in splits.of.items()} == {"m": 0.5, "n": 0.1}
    app._accept(from_mapping({}))
    assert splits.of == {}


def test_workers_behind_a_name_have_the_ports_of_the_config() -> None:
    app = App(from_mapping({"discovery": {"dns": {"name": "triton.svc", "grpc_port": 5001, "http_port": 5000}}}), None)
    assert app._worker_source._ports == (5001, 5000)  # type: ignore[union-attr]


def test_pods_without_the_client_of_kubernetes_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "is_installed", lambda: False)
    config = from_mapping({"discovery": {"kubernetes": {"label_selector": "app=triton"}}})
    with pytest.raises(ConfigError, match=r"discovery\.kubernetes: needs the package `kubernetes`: pip install"):
        App(config, None)


async def test_a_list_that_waits_for_a_restart_does_not_replace_the_file_that_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("discovery: {file: workers.yaml}")
    worker = "{name: a, address: 10.0.0.1, grpc_port: 1, http_port: 2}"
    (tmp_path / "workers.yaml").write_text(f"workers: [{worker}]")
    app = App(load(file), file)
    stop = asyncio.Event()
    following = asyncio.create_task(app._follow_workers(stop))
    try:
        await eventually(lambda: app.router.fleet.names == ["a"], "the file is read")
        app._accept(from_mapping({"discovery": {"workers": []}}))
        assert app.router.fleet.names == ["a"]
    finally:
        stop.set()
        await following


async def test_a_list_of_workers_that_is_not_there_is_named_by_field_path_and_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("discovery: {file: workers.yaml}")
    app = App(load(file), file)
    assert app.not_ready() == "discovery.file: no list of workers was read yet"
    stop = asyncio.Event()
    following = asyncio.create_task(app._follow_workers(stop))
    try:
        await eventually(lambda: caplog.messages, "the missing file is told")
        assert caplog.messages == [
            "discovery.file: the list of workers is refused, there is none yet, so nothing is picked: "
            f"{tmp_path}/workers.yaml: cannot be read: No such file or directory; put the file there or name another"
        ]
        assert app.not_ready() == "discovery.file: no list of workers was read yet; the log says why"
        (tmp_path / "workers.yaml").write_text("workers: []")
        await eventually(lambda: app.not_ready() == "discovery lists no worker", "the file is read")
        (tmp_path / "workers.yaml").write_text("")
        await eventually(lambda: "refused, the last good one stays: " in caplog.text, "the empty file is told")
    finally:
        stop.set()
        await following


@pytest.mark.parametrize("pool", [None, "triton"])
def test_the_extensions_metrics_are_there_where_the_config_names_a_pool(pool: str | None) -> None:
    app = App(from_mapping({"discovery": {"workers": workers()}, "admin": {"inference_pool": pool}}), None)
    app._discovered(app.state.config.discovery.workers)
    page = app.metrics.exposition().decode()
    assert ('inference_pool_ready_pods{name="triton"}' in page) is (pool is not None)
    assert ("inference_objective_request" in page) is (pool is not None)
