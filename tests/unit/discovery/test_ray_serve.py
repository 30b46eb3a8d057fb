"""Replicas of Ray Serve as workers, of what a cluster's dashboard answers (Ray 2.60)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.waiting import eventually

from balancer.discovery.ray_serve import INDIRECT, PATH, RaySource, ReplicasWanted, replicas_in, worker_name
from balancer.discovery.workers import WorkerSpec

WANTED = ReplicasWanted("http://ray-head:8265")


def group(*targets: tuple[str, str, int], app: str = "digits", protocol: str = "HTTP") -> dict[str, Any]:
    listed = [{"ip": ip, "port": port, "instance_id": "", "name": name} for name, ip, port in targets]
    return {"targets": listed, "route_prefix": f"/v2/models/{app}", "protocol": protocol, "app_name": app}


def replica(letter: str, app: str = "digits") -> str:
    return f"SERVE_REPLICA::{app}#Digits#{letter}"


def serve(*groups: dict[str, Any], running: int = 2, state: str = "RUNNING") -> bytes:
    deployments = {"Digits": {"status": "HEALTHY", "replicas": [{"state": state}] * running}}
    applications = {"digits": {"status": "RUNNING", "deployments": deployments}}
    return json.dumps({"proxy_location": "HeadOnly", "applications": applications, "target_groups": groups}).encode()


def names(answer: bytes, wanted: ReplicasWanted = WANTED) -> list[str]:
    return [worker.name for worker in replicas_in(answer, wanted)]


def test_each_replica_is_a_worker_at_the_ports_of_its_own() -> None:
    http = group((replica("a"), "10.0.0.1", 30000), (replica("b"), "10.0.0.2", 30000))
    grpc = group((replica("b"), "10.0.0.2", 40000), protocol="gRPC")
    assert replicas_in(serve(http, grpc), WANTED) == (
        WorkerSpec(name="digits-Digits-a", address="10.0.0.1", grpc_port=0, http_port=30000),
        WorkerSpec(name="digits-Digits-b", address="10.0.0.2", grpc_port=40000, http_port=30000),
    )
    [of_openai, _] = replicas_in(serve(http, grpc), ReplicasWanted(WANTED.dashboard, protocol="openai"))
    assert of_openai.endpoints == {"openai": "10.0.0.1:30000"}


def test_a_replica_without_grpc_has_no_such_port() -> None:
    [worker] = replicas_in(serve(group((replica("a"), "10.0.0.1", 30000))), WANTED)
    assert worker.endpoints == {"http": "10.0.0.1:30000"}


def test_only_the_applications_that_are_named() -> None:
    of_two = serve(
        group((replica("a"), "10.0.0.1", 30000)),
        group((replica("b", "other"), "10.0.0.1", 30001), app="other"),
    )
    assert names(of_two) == ["digits-Digits-a", "other-Digits-b"]
    assert names(of_two, ReplicasWanted(WANTED.dashboard, ("other",))) == ["other-Digits-b"]


def test_proxies_are_no_workers() -> None:
    """Serve names them for an application without replicas, and where replicas cannot be called."""
    proxies = group(("SERVE_PROXY_ACTOR-1", "10.0.0.1", 8000))
    assert names(serve(proxies, running=0)) == []
    with pytest.raises(ValueError, match="RAY_SERVE_ENABLE_DIRECT_INGRESS=1"):
        names(serve(proxies))


def test_replicas_that_a_new_controller_has_not_found_yet_are_not_gone() -> None:
    with pytest.raises(ValueError, match="recovering"):
        names(serve(state="RECOVERING"))


def test_addresses_of_this_machine_are_taken_of_a_cluster_of_this_machine_alone() -> None:
    here = serve(group((replica("a"), "127.0.0.1", 30000), (replica("b"), "10.0.0.1", 30000)))
    assert names(here) == ["digits-Digits-b"]
    assert len(names(here, ReplicasWanted("http://127.0.0.1:8265"))) == 2


@pytest.mark.parametrize(
    "target",
    [
        ("SERVE_REPLICA::digits#a", "10.0.0.1", 30000),
        (replica("a"), "ray-worker-1", 30000),
        (replica("a"), "10.0.0.1", 0),
        (replica("a"), "10.0.0.1", 70000),
        (replica("a"), "169.254.169.254", 80),
    ],
)
def test_a_target_that_is_none_is_left_out(target: tuple[str, str, int]) -> None:
    assert names(serve(group(target, (replica("b"), "10.0.0.2", 30000)))) == ["digits-Digits-b"]


def test_two_replicas_at_one_port_are_one_worker() -> None:
    assert names(serve(group((replica("a"), "10.0.0.1", 1), (replica("b"), "10.0.0.1", 1)))) == ["digits-Digits-a"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", b'{"target_groups": 1}', b'{"target_groups": [{}]}'])
def test_another_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match="is no dashboard of Ray with Serve"):
        replicas_in(answer, WANTED)


@pytest.mark.parametrize(
    ("application", "name"),
    [
        ("digits", "digits-Digits-x1"),
        ("my app/ü", "my-app---Digits-x1"),
        ("-", "Digits-x1"),
        ("a" * 300, None),
        (".-" * 150, None),
    ],
)
def test_a_name_fits_workers_whatever_the_application_is_called(application: str, name: str | None) -> None:
    made = worker_name(application, "Digits", "x1")
    assert WorkerSpec(name=made, address="10.0.0.1").name == (name or made)
    assert made.endswith("Digits-x1")


class Dashboard:
    """Answers as the test says; not one of a cluster."""

    def __init__(self) -> None:
        self.says: bytes | None = serve(group((replica("a"), "10.0.0.1", 30000)))
        self.asked: list[str] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.path == PATH
        self.asked.append(request.headers.get("Authorization", ""))
        return web.Response(status=503) if self.says is None else web.Response(body=self.says)


@contextlib.asynccontextmanager
async def followed(dashboard: Dashboard, token_file: Path | None = None) -> AsyncIterator[list[list[str]]]:
    """The lists that a source yields while a dashboard answers."""
    runner = web.ServerRunner(web.Server(dashboard.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    wanted = ReplicasWanted(f"http://127.0.0.1:{runner.addresses[0][1]}", token_file=token_file)
    stop, lists = asyncio.Event(), []

    async def follow() -> None:
        async with contextlib.aclosing(RaySource(wanted, every_s=0.001).updates(stop)) as updates:
            async for workers in updates:
                names_of = [worker.name for worker in workers]
                lists.append(names_of)

    following = asyncio.create_task(follow())
    try:
        yield lists
    finally:
        stop.set()
        await following
        await runner.cleanup()


async def test_the_list_follows_the_cluster_and_stays_while_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    dashboard = Dashboard()
    async with followed(dashboard) as lists:
        await eventually(lambda: lists == [["digits-Digits-a"]], "it is listed")
        dashboard.says = None
        before = len(dashboard.asked)
        await eventually(lambda: len(dashboard.asked) > before + 3, "it is asked again")
        dashboard.says = serve(group(("SERVE_PROXY_ACTOR-1", "10.0.0.1", 8000)))
        await eventually(lambda: any(INDIRECT in message for message in caplog.messages), "the remedy is told")
        assert lists == [["digits-Digits-a"]]
        dashboard.says = serve(group((replica("b"), "10.0.0.2", 30000)))
        await eventually(lambda: lists[1:] == [["digits-Digits-b"]], "the other one is listed")
    said = [message for message in caplog.messages if message.startswith("discovery.ray: ")]
    assert len(said) == 3, "each once"
    assert f"answers {PATH} with 503; the workers known last stay" in said[0]
    assert "says again which replicas run" in said[2]


async def test_the_token_is_read_for_each_question(tmp_path: Path) -> None:
    dashboard, token = Dashboard(), tmp_path / "token"
    token.write_text("first\n")
    async with followed(dashboard, token):
        await eventually(lambda: "Bearer first" in dashboard.asked, "it is shown")
        token.write_text("second\n")
        await eventually(lambda: "Bearer second" in dashboard.asked, "the other one is")


async def test_an_endless_answer_and_a_token_that_is_none_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dashboard, token = Dashboard(), tmp_path / "token"
    token.write_text("first")
    async with followed(dashboard, token) as lists:
        await eventually(lambda: lists == [["digits-Digits-a"]], "it is listed")
        dashboard.says = serve() + b" " * 2**23
        await eventually(lambda: "the answer has more than 8388608 bytes" in caplog.text, "it is refused")
        token.write_text("a\nb")
        await eventually(lambda: f"{token} must hold the cluster's token" in caplog.text, "it is not sent")
    assert lists == [["digits-Digits-a"]]
    assert {*dashboard.asked} == {"Bearer first"}
