"""Each container's command, as the chart renders it, starts, serves, is probed, drains and ends: outside of a cluster,
with the files that the chart would mount. Workers are listed, since there are no pods; `test_chart.py` has discovery.
"""

import asyncio
import json
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml
from support import chart, fronts
from support.certificates import Authority, Identity
from support.chart import EXAMPLES, Object, named, rendered
from support.pod_outside import ContainerOutside, PodOutside, executables
from support.waiting import eventually
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from balancer.stack.process import free_port_range, free_ports
from balancer.stack.stack import read_samples, sum_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GATEWAY, POOL, BALANCERS = "fleet-balancer", "fleet-balancer-triton-cpu", "fleet-balancer-balancers"
TOKEN = "a token of the admin pages"
ZONE = "1"
"""Text that YAML would take for a number."""
PAGE = (chart.ROOT / "docs" / "operate" / "kubernetes.md").read_text()
(IMAGE,) = (json.loads(body) for body in re.findall(r"curl \S+/infer --data '(.*)'", PAGE))
"""The request that the page shows: a zero."""


@dataclass
class Fleet:
    """A gateway's pod and a Triton's."""

    gateway: PodOutside
    triton: PodOutside
    found: list[Object]
    ports: Mapping[str, int]
    scheme: str
    trusted: Any
    zone: str | None
    """The gateway's."""

    async def start(self) -> None:
        bootstrap = await self.gateway.start("bootstrap")
        assert await bootstrap.wait() == 0, bootstrap.log_tail()
        # As a kubelet: all of a pod at once.
        for pod, container in (
            *((self.triton, each) for each in ("triton", "agent")),
            *((self.gateway, each) for each in ("balancer", "envoy")),
        ):
            await pod.start(container)
        for kind in ("startup", "readiness", "liveness"):
            for pod in (self.triton, self.gateway):
                await eventually(
                    lambda pod=pod, kind=kind: pod.probes(kind), f"the {kind} probes of {pod.name} succeed"
                )

    def config(self, **sections: Any) -> bytes:
        held = yaml.safe_load(named(self.found, "ConfigMap", f"{GATEWAY}-config")["data"]["balancer.yaml"])
        return self.gateway.mapped(yaml.safe_dump(held | sections)).encode()

    async def admin(self, page: str) -> Any:
        url = f"{self.scheme}://127.0.0.1:{self.ports['gateway.ports.admin']}{page}"
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
            session.get(url, ssl=self.trusted, server_hostname="balancer.internal") as response,
        ):
            return await response.json(content_type=None)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.ports['gateway.ports.clients']}"

    @property
    def forwards(self) -> bool:
        """Whether the balancer does."""
        return bool(yaml.safe_load(self.config())["envoy"]["frontend"] == "proxy")

    async def infer(self) -> aiohttp.ClientResponse:
        async with aiohttp.ClientSession() as session:
            url = f"{self.url}/v2/models/digits/infer"
            async with session.post(url, json=IMAGE, ssl=self.trusted, server_hostname="balancer.internal") as response:
                if response.status != 200:
                    return response
                outputs = {each["name"]: each["data"] for each in (await response.json())["outputs"]}
                assert outputs["LABEL"] == [0]
                return response


def secret(authority: Authority, identity: Identity) -> dict[str, bytes]:
    return {"tls.crt": identity.cert.read_bytes(), "tls.key": identity.key.read_bytes(), "ca.crt": authority.pem}


@pytest.fixture
def mounts() -> Iterator[Path]:
    """Where volumes lie; the path of a socket in one has to be short."""
    with tempfile.TemporaryDirectory(prefix="pod-") as directory:
        yield Path(directory)


@pytest.fixture(params=["native", *fronts.one_of("pick-with-certificates", "proxy")])
async def fleet(request: pytest.FixtureRequest, tmp_path: Path, mounts: Path) -> AsyncIterator[Fleet]:
    if why := chart.why_absent():
        pytest.skip(why)
    names = [f"gateway.ports.{each}" for each in ("clients", "reports", "admin", "envoyAdmin")]
    names += [f"triton.ports.{each}" for each in ("grpc", "http", "metrics")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    values: dict[str, Any] = {**ports, "gateway.drain.settleSeconds": 1, "gateway.zoneFrom": "label"}
    secrets: dict[str, dict[str, bytes]] = {}
    trusted: Any = True
    if request.param == "proxy":
        kept = {"digits": {"proxy": {"cache_ttl_s": 60}}}
        values |= {"gateway.frontend": "proxy", "gateway.processes": 2, "config.models": kept}
        # Process 1 has the next ones.
        ports |= {f"gateway.ports.{each}": free_port_range(2) for each in ("reports", "admin")}
        values |= ports
    if secure := request.param == "pick-with-certificates":
        authority = Authority(tmp_path / "authority")
        balancer = authority.issue("balancer", dns="balancer.internal")
        secrets = {
            "for-clients": secret(authority, balancer),
            "for-balancer": secret(authority, balancer),
            "for-agents": secret(authority, authority.issue("agent", uri=f"spiffe://balancer/agent/{POOL}-0")),
            "for-admins": {"token": TOKEN.encode()},
        }
        values |= {
            "gateway.frontend": "pick",
            "certificates.source": "secrets",
            "gateway.adminTokenSecret": "for-admins",
        }
        values |= {f"certificates.secrets.{part}": f"for-{part}" for part in ("clients", "balancer", "agents")}
        trusted = ssl.create_default_context(cadata=authority.pem.decode())
    found = rendered(EXAMPLES["try"], values=values)
    worker = {"name": f"{POOL}-0", "address": "127.0.0.1"}
    worker |= {f"{kind}_port": ports[f"triton.ports.{kind}"] for kind in ("grpc", "http")}
    binaries = executables(tmp_path / "bin")
    pods = {
        name: PodOutside(
            found,
            named(found, kind, name),
            mounts / kind,
            binaries=binaries,
            hosts=[BALANCERS],
            secrets=secrets,
            # Older clusters give no such label.
            labels={} if secure else {"topology.kubernetes.io/zone": ZONE},
        )
        for kind, name in (("Deployment", GATEWAY), ("StatefulSet", POOL))
    }
    fleet = Fleet(
        pods[GATEWAY], pods[POOL], found, ports, "https" if secure else "http", trusted, None if secure else ZONE
    )
    fleet.gateway.swap("config", {"balancer.yaml": fleet.config(discovery={"workers": [worker]})})
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.gateway.stop()
        await fleet.triton.stop()


async def the_proxy_forwards(fleet: Fleet) -> None:
    """gRPC's inferences are the balancer's own calls: it has their answers, so an equal request needs no worker."""
    (image,) = IMAGE["inputs"]
    wanted = InferInput(image["name"], image["shape"], image["datatype"])
    wanted.set_data_from_numpy(np.array(image["data"], np.float32).reshape(image["shape"]))
    async with InferenceServerClient(f"127.0.0.1:{fleet.ports['gateway.ports.clients']}") as client:

        async def kept() -> bool:
            assert (await client.infer("digits", [wanted])).as_numpy("LABEL").tolist() == [[0]]
            first = fleet.ports["gateway.ports.admin"]
            pages = [await read_samples(f"http://127.0.0.1:{first + process}") for process in range(2)]
            return all(sum_of(page, "balancer_proxy_cache_total", result="hit") for page in pages)

        await eventually(kept, "each process gives an answer that it kept")


async def test_from_the_chart_to_an_answer_and_to_its_end(fleet: Fleet) -> None:
    await eventually(lambda: fleet.admin("/ready"), "the agent's reports have come", until=lambda found: found["ready"])

    async def answered() -> bool:
        return (await fleet.infer()).status == 200

    assert (await fleet.admin("/config"))["config"]["zones"]["own"] == fleet.zone
    # Envoy hears of it right after the balancer.
    await eventually(answered, "there is an answer")
    if fleet.forwards:
        await the_proxy_forwards(fleet)
    await the_config_is_swapped(fleet)
    await the_gateway_drains(fleet)
    await triton_drains(fleet)
    await ends(fleet.gateway.processes["balancer"])


async def ends(container: ContainerOutside) -> None:
    """As after its hook."""
    container.process.terminate()
    assert await container.wait() == 0


async def the_config_is_swapped(fleet: Fleet) -> None:
    old = yaml.safe_load(Path(fleet.gateway.mapped("/etc/balancer/config"), "balancer.yaml").read_text())
    assert (await fleet.admin("/config"))["applied"] == 0
    new = old | {"policy": {"name": "round_robin"}}
    fleet.gateway.swap("config", {"balancer.yaml": yaml.safe_dump(new).encode()})
    await eventually(
        lambda: fleet.admin("/config"),
        "the balancer has the new config",
        until=lambda page: page["applied"] == 1 and page["waiting_for_restart"] == [],
    )
    assert (await fleet.infer()).status == 200
    assert (await fleet.admin("/explain?model=digits"))["policy"] == "round_robin"


async def the_gateway_drains(fleet: Fleet) -> None:
    """A request that began before the end of the pod is answered; balancer and Envoy outlive it, in this order of ends:
    request, Envoy, balancer."""
    body_goes_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        content = json.dumps(IMAGE).encode()
        yield content[:20]
        await body_goes_on.wait()
        yield content[20:]

    async def upload() -> int:
        async with aiohttp.ClientSession() as session:
            headers = {"Content-Type": "application/json"}
            url = f"{fleet.url}/v2/models/digits/infer"
            async with session.post(
                url, data=body(), headers=headers, ssl=fleet.trusted, server_hostname="balancer.internal"
            ) as answer:
                return answer.status

    uploading = asyncio.create_task(upload())
    admin = f"http://127.0.0.1:{fleet.ports['gateway.ports.envoyAdmin']}"
    await eventually(lambda: in_flight(admin, 1), "the upload has begun")
    hooks = {each: asyncio.create_task(fleet.gateway.pre_stop(each)) for each in ("envoy", "balancer")}
    await eventually(
        fleet.infer,
        "clients are told to use another connection",
        until=lambda served: served.headers.get("Connection") == "close",
    )
    assert not uploading.done()
    assert not any(hook.done() for hook in hooks.values())
    body_goes_on.set()
    assert await uploading == 200
    assert await hooks["envoy"] == 0
    assert not hooks["balancer"].done()
    await ends(fleet.gateway.processes["envoy"])
    assert await hooks["balancer"] == 0


async def in_flight(admin: str, number: int) -> bool:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{admin}/stats?filter=^http.inference.downstream_rq_active$") as answer,
    ):
        return (await answer.text()).strip() == f"http.inference.downstream_rq_active: {number}"


async def triton_drains(fleet: Fleet) -> None:
    """Triton's hook waits for the agent's end, which comes after its drain."""
    hooks = {each: asyncio.create_task(fleet.triton.pre_stop(each)) for each in ("triton", "agent")}
    assert await hooks["agent"] == 0
    assert not hooks["triton"].done()
    await ends(fleet.triton.processes["agent"])
    assert await hooks["triton"] == 0
    await ends(fleet.triton.processes["triton"])
