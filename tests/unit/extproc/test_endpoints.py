import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from balancer.extproc.endpoints import Ads, Endpoint, LastKnown
from balancer.extproc.names import ENDPOINTS_TYPE_URL, LAST_KNOWN

BOTH = ["triton_grpc", "triton_http"]
A = Endpoint("a", "10.0.0.1", 8001, 8000)
B = Endpoint("b", "10.0.0.2", 8001, 8000, "draining")


class Subscriber:
    """An Envoy's end of the stream, by hand."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def ask(
        self, names: list[str], *, answering: discovery_pb2.DiscoveryResponse | None = None, **more: Any
    ) -> None:
        request = discovery_pb2.DiscoveryRequest(type_url=ENDPOINTS_TYPE_URL, resource_names=names, **more)
        request.node.id = "test"
        if answering is not None:
            request.response_nonce = answering.nonce
            request.version_info = answering.version_info
        await self.call.write(request)

    async def response(self) -> discovery_pb2.DiscoveryResponse:
        return await asyncio.wait_for(self.call.read(), 10)


@pytest.fixture
def ads() -> Ads:
    return Ads()


@pytest.fixture
async def subscribe(ads: Ads) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    ads.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        yield lambda: Subscriber(stub.StreamAggregatedResources())
    await server.stop(None)


def assignments(response: discovery_pb2.DiscoveryResponse) -> dict[str, list[tuple[str, int, str]]]:
    found = {}
    for resource in response.resources:
        assignment = endpoint_pb2.ClusterLoadAssignment.FromString(resource.value)
        found[assignment.cluster_name] = [
            (
                endpoint.endpoint.address.socket_address.address,
                endpoint.endpoint.address.socket_address.port_value,
                health_check_pb2.HealthStatus.Name(endpoint.health_status),
            )
            for locality in assignment.endpoints
            for endpoint in locality.lb_endpoints
        ]
    return found


async def test_nothing_is_sent_before_the_fleet_is_known(ads: Ads, subscribe: Any) -> None:
    envoy = subscribe()
    await envoy.ask(BOTH, version_info="of a former life")
    # Answered in order: this would come second, had the first been answered.
    ads.update([])
    assert assignments(await envoy.response()) == {"triton_grpc": [], "triton_http": []}


async def test_only_what_changed_is_sent_and_only_what_is_asked_for(ads: Ads, subscribe: Any) -> None:
    ads.update([A, B])
    envoy = subscribe()
    await envoy.ask(["triton_grpc"])
    first = await envoy.response()
    assert set(assignments(first)) == {"triton_grpc"}
    await envoy.ask(["triton_grpc"], answering=first)
    ads.update([B, A])
    await envoy.ask(BOTH, answering=first)
    second = await envoy.response()
    assert set(assignments(second)) == set(BOTH)
    assert second.version_info == first.version_info
    assert second.nonce != first.nonce
    await envoy.ask(BOTH, answering=second)
    ads.update([A])
    third = await envoy.response()
    assert third.version_info != second.version_info
    assert len(assignments(third)["triton_http"]) == 1


async def test_an_answer_to_an_older_response_changes_nothing(ads: Ads, subscribe: Any) -> None:
    ads.update([A])
    envoy = subscribe()
    await envoy.ask(BOTH)
    first = await envoy.response()
    ads.update([A, B])
    second = await envoy.response()
    await envoy.ask(["triton_grpc"], answering=first)
    await envoy.ask(BOTH, answering=second)
    ads.update([B])
    assert set(assignments(await envoy.response())) == set(BOTH)


async def test_workers_that_speak_openai_are_in_a_cluster_of_their_own(ads: Ads, subscribe: Any) -> None:
    ads.update([A, Endpoint("llm", "10.0.0.3", 8001, 8080, protocol="openai")])
    envoy = subscribe()
    await envoy.ask([*BOTH, "openai"])
    found = assignments(await envoy.response())
    assert {cluster: [address for address, *_ in each] for cluster, each in found.items()} == {
        "triton_grpc": ["10.0.0.1"],
        "triton_http": ["10.0.0.1"],
        "openai": ["10.0.0.3"],
    }
    assert found["openai"][0][1] == 8080


async def test_what_is_not_served_is_not_answered(ads: Ads, subscribe: Any) -> None:
    ads.update([A])
    envoy = subscribe()
    await envoy.call.write(
        discovery_pb2.DiscoveryRequest(type_url="type.googleapis.com/envoy.config.cluster.v3.Cluster")
    )
    await envoy.ask(BOTH)
    assert (await envoy.response()).type_url == ENDPOINTS_TYPE_URL


def test_the_last_known_are_files_that_envoy_reads_and_are_written_again_where_they_could_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state" / "endpoints"
    last_known = LastKnown(folder)

    def names() -> list[list[str]]:
        found = []
        for cluster, name in LAST_KNOWN.items():
            response = discovery_pb2.DiscoveryResponse.FromString((folder / name).read_bytes())
            assignment = endpoint_pb2.ClusterLoadAssignment.FromString(response.resources[0].value)
            assert response.version_info
            assert assignment.cluster_name == cluster
            found.append([each.endpoint.hostname for each in assignment.endpoints[0].lb_endpoints])
        return found

    # `balancer envoy`, before the balancer has run.
    last_known.begin()
    assert names() == [[], [], []]
    last_known.update([A], 0.0)
    # `balancer envoy` once more.
    LastKnown(folder).begin()
    assert names() == [["a"], ["a"], []]
    assert sorted(path.name for path in folder.iterdir()) == sorted(LAST_KNOWN.values())

    moved = folder.rename(tmp_path / "moved")
    folder.touch()
    for now_s in (1.0, 1.5, 2.0):
        last_known.update([A, B], now_s)
    last_known.retry(2.5)
    assert caplog.text.count("cannot be written") == 1
    folder.unlink()
    moved.rename(folder)
    last_known.retry(2.9)
    assert names() == [["a"], ["a"], []]
    last_known.retry(3.0)
    assert names() == [["a", "b"], ["a", "b"], []]
