"""From a pod that is ready to the first pick that names it, and from its deletion to the last: over a real API server,
and a real balancer that is asked for picks as Envoy asks."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.balancer_alone import BalancerAlone
from support.chart import role
from support.kubernetes_api import KubernetesApi
from support.running import running
from support.waiting import eventually

from balancer.extproc.names import PICKS_SERVICE

pytestmark = pytest.mark.integration

ROUNDS = 10
SETTLED_PICKS = 200
"""Without the pod: that was the last one of it."""
STEADY = {"steady-1": "10.0.0.1", "steady-2": "10.0.0.2"}
COMING = "10.0.0.3"


class Picks:
    """Asked for one after the other."""

    def __init__(self) -> None:
        self.made = 0
        self.last_s: dict[str, float] = {}
        """When each address was last picked."""
        self.last: dict[str, int] = {}
        """And by which of the picks."""
        self.first_s: dict[str, float] = {}
        """And when it was first, since `forget`."""

    def forget(self, address: str) -> None:
        """Its first pick is one that comes from now on."""
        self.first_s.pop(address, None)

    async def go_on(self, address: str) -> None:
        """Until cancelled."""
        asking = ext_proc.ProcessingRequest()
        asking.request_headers.headers.headers.add(key=":path", raw_value=b"/v2/models/m/infer")
        async with grpc.aio.insecure_channel(address) as channel:
            process = channel.stream_stream(
                f"/{PICKS_SERVICE}/Process",
                request_serializer=ext_proc.ProcessingRequest.SerializeToString,
                response_deserializer=ext_proc.ProcessingResponse.FromString,
            )
            while True:
                stream = process(metadata=(("x-ext-proc-headers-only", "true"),))
                await stream.write(asking)
                answer = await stream.read()
                named = answer.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"].partition(":")[0]
                now_s = time.monotonic()
                self.made += 1
                self.last_s[named], self.last[named] = now_s, self.made
                self.first_s.setdefault(named, now_s)


@contextlib.asynccontextmanager
async def picking(address: str) -> AsyncIterator[Picks]:
    picks = Picks()
    task = asyncio.create_task(picks.go_on(address))
    try:
        yield picks
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_from_ready_to_the_first_pick_and_from_deletion_to_the_last(
    kubernetes: KubernetesApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = await kubernetes.namespace("first-and-last-pick")
    await namespace.create_all(role(namespace.name))
    file = await namespace.kubeconfig(tmp_path / "kubeconfig", await namespace.token("fleet-balancer"))
    for name, address in STEADY.items():
        await namespace.ready(name, address=address)
    balancer = BalancerAlone(
        tmp_path,
        discovery={"kubernetes": {"label_selector": "app=triton", "kubeconfig": str(file)}},
        policy={"name": "round_robin"},
    )
    first_s, last_s = [], []
    async with running(balancer), picking(balancer.envoy) as picks:
        for number in range(ROUNDS):
            name = f"coming-{number}"
            await namespace.create(name, address=COMING)
            await namespace.status(name, address=COMING, ready=False)
            picks.forget(COMING)
            began_s = time.monotonic()
            await namespace.status(name, address=COMING)
            await eventually(lambda: COMING in picks.first_s, "it is picked")
            first_s.append(picks.first_s[COMING] - began_s)
            began_s = time.monotonic()
            await namespace.delete(name)
            begun = picks.made
            await eventually(
                lambda begun=begun: picks.made - max(picks.last[COMING], begun) > SETTLED_PICKS,
                "it is left out",
            )
            last_s.append(max(picks.last_s[COMING] - began_s, 0.0))
            await namespace.end(name)
    assert len(first_s) == len(last_s) == ROUNDS
    with capsys.disabled():
        for what, found in (("ready to first pick", first_s), ("deletion to last pick", last_s)):
            middle, worst = statistics.median(found) * 1e3, max(found) * 1e3
            print(f"\n{what}: median {middle:.0f} ms, worst {worst:.0f} ms of {ROUNDS}", end="")
        print()
