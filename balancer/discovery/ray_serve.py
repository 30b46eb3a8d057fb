"""Workers from a Ray cluster: replicas of Serve's applications, each at the port of its own that Serve's direct ingress
gives it. The API of the cluster's dashboard is asked again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ValidationError

from balancer.discovery.pods.pod import is_of_a_pod
from balancer.discovery.workers import WorkerProtocol, WorkerSpec
from balancer.errors import OperatorError
from balancer.files.answers import bearer_of, whole_body

logger = logging.getLogger(__name__)
PATH = "/api/serve/applications/"
PERIOD_S = 0.5
_TIMEOUT_S = 5.0
_MOST_BYTES = 8 * 2**20
"""Most bytes of an answer that are read; each replica takes some 700."""
MAX_REPLICAS = 1000
_OF_REPLICA = "SERVE_REPLICA::"
"""What the name of a replica's actor begins with."""
INDIRECT = (
    "Serve names its proxies in place of its replicas: start Ray, on every node, with "
    "RAY_SERVE_ENABLE_DIRECT_INGRESS=1 and without RAY_SERVE_ENABLE_HA_PROXY"
)


@dataclass(frozen=True, slots=True)
class ReplicasWanted:
    dashboard: str
    """`http://host:port`."""
    applications: tuple[str, ...] = ()
    """Their names; empty: all."""
    protocol: WorkerProtocol = "triton"
    token_file: Path | None = None
    """The file with the cluster's token; None: it asks for none."""


def worker_name(application: str, deployment: str, replica: str) -> str:
    """The name under which discovery lists a replica, and its agent reports it. Characters that a worker's name may not
    have become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{application}-{deployment}-{replica}")[-253:].strip("-._")


class RaySource:
    """A `WorkerSource` that asks for the replicas that run. While nobody answers, it yields nothing."""

    def __init__(self, wanted: ReplicasWanted, every_s: float = PERIOD_S) -> None:
        self._wanted, self._every_s = wanted, every_s
        self._problem = ""

    async def updates(self, stop: asyncio.Event) -> AsyncGenerator[tuple[WorkerSpec, ...], None]:
        """The list of workers, first as it is and then after every change, until `stop` is set."""
        last: tuple[WorkerSpec, ...] | None = None
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(self._wanted.dashboard, timeout=timeout) as session:
            while not stop.is_set():
                workers = await self._ask(session)
                if workers is not None and workers != last:
                    last = workers
                    yield workers
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._every_s)

    async def _ask(self, session: aiohttp.ClientSession) -> tuple[WorkerSpec, ...] | None:
        problem, workers = "", None
        try:
            # In a thread: of a thousand replicas it is megabytes.
            workers = await asyncio.to_thread(replicas_in, await self._answer(session), self._wanted)
        except (OSError, TimeoutError, aiohttp.ClientError, ValueError, OperatorError) as error:
            problem = str(error) or type(error).__name__
        if problem != self._problem and problem:
            logger.warning("discovery.ray: %s: %s; the workers known last stay", self._wanted.dashboard, problem[:500])
        elif problem != self._problem:
            logger.info("discovery.ray: %s says again which replicas run", self._wanted.dashboard)
        self._problem = problem
        return workers

    async def _answer(self, session: aiohttp.ClientSession) -> bytes:
        token_file = self._wanted.token_file
        # Read for each question, so that a token that is renewed is used.
        key = "the cluster's token"
        headers = {} if token_file is None else await asyncio.to_thread(bearer_of, token_file, key)
        async with session.get(PATH, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"answers {PATH} with {response.status}")
            return await whole_body(response, _MOST_BYTES)


class _Target(BaseModel):
    ip: str
    port: int
    name: str


class _TargetGroup(BaseModel):
    protocol: str
    app_name: str = ""
    targets: list[_Target]


class _Replica(BaseModel):
    state: str


class _Deployment(BaseModel):
    replicas: list[_Replica] = []


class _Application(BaseModel):
    deployments: dict[str, _Deployment] = {}


class _Serve(BaseModel):
    """The dashboard's answer, as far as discovery reads it."""

    applications: dict[str, _Application] = {}
    target_groups: list[_TargetGroup] = []


def replicas_in(answer: bytes, wanted: ReplicasWanted) -> tuple[WorkerSpec, ...]:
    """The replicas that a dashboard's answer names, at most `MAX_REPLICAS`, by name.

    Raises:
        ValueError: it is no such answer, or not the whole truth now, or replicas cannot be called; the message says the
            remedy.
    """
    try:
        said = _Serve.model_validate_json(answer)
    except ValidationError as error:
        raise ValueError(f"is no dashboard of Ray with Serve: {error.errors()[0]['msg']}") from None
    if _any_is(said, wanted, "RECOVERING"):
        # Its controller has begun anew, and replicas that serve all the while are not listed yet.
        raise ValueError("Serve is recovering its replicas")
    ports: dict[str, dict[str, _Target]] = {}
    for group in said.target_groups:
        if not wanted.applications or group.app_name in wanted.applications:
            for target in group.targets:
                if target.name.startswith(_OF_REPLICA):
                    ports.setdefault(target.name, {})[group.protocol] = target
    if not ports and _any_is(said, wanted, "RUNNING"):
        raise ValueError(INDIRECT)
    found: dict[str, WorkerSpec] = {}
    taken: set[str] = set()
    for actor in sorted(ports):
        worker = _worker(actor, ports[actor], wanted)
        if worker is not None and taken.isdisjoint(worker.endpoints.values()):
            taken.update(worker.endpoints.values())
            found[worker.name] = worker
    return tuple(found[name] for name in sorted(found)[:MAX_REPLICAS])


def _any_is(said: _Serve, wanted: ReplicasWanted, state: str) -> bool:
    """Whether some replica is in that state."""
    return any(
        replica.state == state
        for name, application in said.applications.items()
        if not wanted.applications or name in wanted.applications
        for deployment in application.deployments.values()
        for replica in deployment.replicas
    )


def _worker(actor: str, ports: Mapping[str, _Target], wanted: ReplicasWanted) -> WorkerSpec | None:
    """None: it takes no HTTP, or is where no worker may be."""
    http, grpc = ports.get("HTTP"), ports.get("gRPC")
    parts = actor.removeprefix(_OF_REPLICA).split("#")
    if http is None or len(parts) != 3:
        return None
    # On this machine's own addresses only where the cluster is on this machine.
    if not is_of_a_pod(http.ip) and urlsplit(wanted.dashboard).hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    with contextlib.suppress(ValidationError):
        return WorkerSpec(
            name=worker_name(*parts),
            address=http.ip,
            protocol=wanted.protocol,
            grpc_port=0 if grpc is None or wanted.protocol == "openai" else grpc.port,
            http_port=http.port,
        )
    return None
