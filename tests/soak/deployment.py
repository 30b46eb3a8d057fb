"""The deployment under test, each part of which can be killed, hung and started again, and samples of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
import yaml

from balancer.bootstrap.bootstrap import render_with_secrets
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import Child, LocalProcess
from balancer.stack.stack import OwnStack, get_json
from balancer.stack.tritonserver import TritonServer
from dev.stack import MODEL
from soak.certificates import Certificates
from soak.client import ID_HEADER, Load

_ANSWERS = "http.inference.ext_proc.stream_msgs_received"
_POLL_S = 0.02
_PAGE_S = 1.0
_OUTCOME_TIMEOUT_S = 20.0
_START_S = 60.0
_TRIED_AGAIN_S = 90.0
"""A worker whose requests failed in numbers is tried again once its error rate has faded."""
_SAMPLE_EVERY_S = 1.0
_NOT_WELL: tuple[dict[str, Any], ...] = (
    {"response_flag_filter": {}},
    {"status_code_filter": {"comparison": {"op": "GE", "value": {"default_value": 400, "runtime_key": "soak.status"}}}},
    # A good answer over REST has no gRPC status, which this filter takes for a bad one.
    {
        "and_filter": {
            "filters": [
                {"header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}},
                {"grpc_status_filter": {"statuses": ["OK"], "exclude": True}},
            ]
        }
    },
)
_LOGGED = {
    "id": f"%REQ({ID_HEADER.upper()})%",
    "started": "%START_TIME(%s.%3f)%",
    "path": "%REQ(:PATH):100%",
    "grpc_timeout": "%REQ(GRPC-TIMEOUT):40%",
    "bytes_in": "%BYTES_RECEIVED%",
    "upstream": "%UPSTREAM_HOST%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "status": "%RESPONSE_CODE%",
    "grpc": "%GRPC_STATUS%",
}


class NotSoError(Exception):
    """Something that was waited for did not happen in time."""


@dataclass
class Deployment(OwnStack):
    """Envoy, a balancer, and Tritons with agents, by their own handles."""

    certificates: Certificates | None = None
    """For mutual TLS between the parts; None: plain text on loopback."""
    draining: set[str] = field(default_factory=set, init=False)
    """Workers that discovery lists as such."""
    unlisted: set[str] = field(default_factory=set, init=False)
    """And those that it leaves out."""

    def __post_init__(self) -> None:
        """As of `OwnStack`, with mutual TLS. What a killed Envoy had sent is soon given up: workers are to be empty."""
        super().__post_init__()
        self.addresses["requests"] = {"outcome_timeout_s": _OUTCOME_TIMEOUT_S}
        # What is not written yet when it is killed explains no failure.
        self.envoy_arguments = ("--file-flush-interval-msec", "100")
        if self.certificates is not None:
            ours = self.certificates.sections()
            self.addresses["envoy"]["balancer_tls"], self.addresses["tls"] = ours["balancer_tls"], ours["tls"]

    @property
    def failures_path(self) -> Path:
        """Envoy's log of what did not end well."""
        return self.directory / "failures.jsonl"

    @property
    def names(self) -> list[str]:
        return [triton.name for triton in self.tritons]

    def upstreams(self) -> dict[str, str]:
        """Worker by `host:port`, gRPC and HTTP."""
        return {endpoint: spec.name for spec in self.specs for endpoint in (spec.grpc_endpoint, spec.http_endpoint)}

    def list_anew(self) -> None:
        listed = [spec for spec in self.specs if spec.name not in self.unlisted]
        self.list_workers(*(each.model_copy(update={"draining": each.name in self.draining}) for each in listed))

    async def get(self, page: str, process: int = 0) -> Any:
        """As of `OwnStack`, and None where the balancer is slow to answer."""
        return await get_json(f"{self.admin(process)}{page}", _PAGE_S)

    async def why_not(self, name: str) -> str:
        """Why the worker gets no requests; empty where it does, or where nobody answers."""
        page = await self.get(f"/explain?model={MODEL}")
        if page is None or "workers" not in page:
            return ""
        found = [worker for worker in page["workers"] if worker["worker"] == name]
        return str(found[0]["why_not"] or "") if found else "not listed"

    async def worker(self, name: str) -> Mapping[str, Any]:
        """Its line of /workers; empty where there is none."""
        page = await self.get("/workers")
        found = [worker for worker in (page or {"workers": ()})["workers"] if worker["worker"] == name]
        return found[0] if found else {}

    async def balancer_left_out(self) -> bool:
        """Whether Envoy asks the balancer no more, by its health checks."""
        page = await get_json(f"{self.envoy.admin_url}/clusters?format=json", _PAGE_S)
        for cluster in (page or {}).get("cluster_statuses", ()):
            if cluster["name"] == "balancer":
                hosts = cluster.get("host_statuses", ())
                return bool(hosts) and all(host["health_status"].get("failed_active_health_check") for host in hosts)
        return False

    async def answered(self) -> int:
        """Answers of the balancer that Envoy got so far; -1 where Envoy does not say."""
        page = await get_json(f"{self.envoy.admin_url}/stats?format=json&filter=^{_ANSWERS}$", _PAGE_S)
        return int(page["stats"][0]["value"]) if page and page.get("stats") else -1

    async def envoy_allocated_bytes(self) -> int | None:
        """What Envoy's allocator has handed out; None where Envoy does not say."""
        page = await get_json(f"{self.envoy.admin_url}/memory", _PAGE_S)
        return int(page["allocated"]) if page else None

    def new_agent(self, triton: TritonServer, further: Sequence[str] = (), control: Path | None = None) -> Child:
        """As of `OwnStack`, with a certificate and a control socket."""
        tls = () if self.certificates is None else self.certificates.agent_arguments(triton.name)
        return super().new_agent(triton, (*tls, *further), control or self.control(triton.name))

    def control(self, name: str) -> Path:
        return self.directory / f"{name}.sock"

    def new_envoy(self) -> EnvoyProcess:
        """As of `OwnStack`, with a log of failures."""
        envoy = super().new_envoy()
        secrets = self.directory / "envoy"
        secrets.mkdir(exist_ok=True)
        text, files = render_with_secrets(envoy.options, secrets)
        for name, content in files.items():
            (secrets / name).write_text(content)
        bootstrap = yaml.safe_load(text)
        manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["access_log"].append(_failure_logger(self.failures_path))
        envoy.bootstrap = yaml.safe_dump(bootstrap)
        return envoy


def _failure_logger(path: Path) -> dict[str, Any]:
    """Of requests that did not end well: a line for each would cost what is measured."""
    return {
        "name": "envoy.access_loggers.file",
        "filter": {"or_filter": {"filters": [*_NOT_WELL]}},
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": str(path),
            "log_format": {"json_format": _LOGGED},
        },
    }


def hang(part: LocalProcess, stopped: bool = True) -> None:
    """Stop a process and its children, or let them go on."""
    os.killpg(part.process.pid, signal.SIGSTOP if stopped else signal.SIGCONT)


async def until(condition: Callable[[], Awaitable[Any]], what: str, patience_s: float = 30.0) -> None:
    """Return once the condition holds; NotSoError naming `what` if it does not."""
    deadline_s = asyncio.get_running_loop().time() + patience_s
    while not await condition():
        if asyncio.get_running_loop().time() > deadline_s:
            raise NotSoError(f"not so after {patience_s:g} s: {what}")
        await asyncio.sleep(_POLL_S)


@dataclass
class Event:
    kind: str
    target: str
    began_s: float
    """Seconds since the epoch, as all times here."""
    noticed_s: float | None = None
    """When somebody in the deployment knew of it."""
    mended_s: float | None = None
    """When what caused it was undone."""
    recovered_s: float | None = None
    """When all was as before: what was broken takes part again."""
    killed: list[tuple[str, float]] = field(default_factory=list)
    """Parts that were ended without warning, and when."""
    down: list[tuple[str, float, float]] = field(default_factory=list)
    """Parts that were not there, from and to."""
    said: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    """What did not happen in time; empty: all did."""

    def noticed(self) -> None:
        self.noticed_s = self.noticed_s or time.time()

    def mended(self) -> None:
        self.mended_s = time.time()


@dataclass
class Site:
    deployment: Deployment
    load: Load
    rng: Random
    event: Event
    number: int
    """Of the worker that it concerns."""

    @property
    def name(self) -> str:
        return self.deployment.names[self.number]

    def span(self, least_s: float, most_s: float) -> float:
        return self.rng.uniform(least_s, most_s)

    async def left_out(self) -> None:
        """Wait until the balancer sends the worker nothing."""
        await until(lambda: self.deployment.why_not(self.name), f"{self.name} is left out")
        self.event.noticed()
        self.event.said["why"] = await self.deployment.why_not(self.name)

    async def answers(self) -> None:
        """Wait until the worker answers honest requests again, picked by the balancer."""

        async def used() -> bool:
            return not await self.deployment.why_not(self.name)

        await until(used, f"{self.name} may be picked")
        self.event.recovered_s = time.time()
        served = self.load.by_worker[self.name]

        async def serves() -> bool:
            return self.load.by_worker[self.name] > served

        await until(serves, f"{self.name} answers", _TRIED_AGAIN_S)
        self.event.said["answers_after_s"] = round(time.time() - self.event.recovered_s, 3)

    async def picks(self) -> None:
        """Wait until Envoy gets answers of the balancer."""
        before = await self.deployment.answered()

        async def more() -> bool:
            return await self.deployment.answered() > before

        await until(more, "Envoy gets answers of the balancer", _START_S)


@dataclass(frozen=True)
class Sample:
    at_s: float
    requests: int
    """Ended until then."""
    part: str
    pid: int
    rss_bytes: int
    descriptors: int
    allocated_bytes: int | None = None
    """Of Envoy: what it holds. Its allocator keeps more: what a burst of large requests has left free."""


@dataclass
class Sampler:
    """Takes samples until it is cancelled."""

    deployment: Deployment
    load: Load
    samples: list[Sample] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            allocated_bytes = await self.deployment.envoy_allocated_bytes()
            for name, part in self.deployment.parts().items():
                if part.process.returncode is None:
                    self._take(name, part.process.pid, allocated_bytes if name == "envoy" else None)
            await asyncio.sleep(_SAMPLE_EVERY_S)

    def _take(self, name: str, pid: int, allocated_bytes: int | None) -> None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                memory, descriptors = process.memory_info().rss, process.num_fds()
        except psutil.Error:
            return
        self.samples.append(Sample(time.time(), self.load.done, name, pid, int(memory), descriptors, allocated_bytes))
