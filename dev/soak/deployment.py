"""The deployment under test, each part of which can be killed, hung and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from balancer.discovery.file import dump_workers
from balancer.gateway.bootstrap import render_with_secrets
from benchmarks.soak.certificates import Certificates
from benchmarks.stack import MODEL, POLICY, Gateway
from tools.stack.agent import agent_beside
from tools.stack.child import Child
from tools.stack.envoyproxy import EnvoyProcess
from tools.stack.process import LocalProcess
from tools.stack.tritonserver import TritonServer

_ANSWERS = "http.inference.ext_proc.stream_msgs_received"
ID_HEADER = "x-soak-id"
"""Numbers the requests of the load, so that a failure is found in Envoy's log."""
_POLL_S = 0.02
_PAGE_S = 1.0
_READY_S = 60.0
_OUTCOME_TIMEOUT_S = 20.0
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
class Deployment(Gateway):
    """Envoy, a balancer, and Tritons with agents, by their own handles."""

    draining: set[str] = field(default_factory=set, init=False)
    """Workers that discovery lists as such."""
    certificates: Certificates | None = None
    """For mutual TLS between the parts; None: plain text on loopback."""
    unlisted: set[str] = field(default_factory=set, init=False)
    """And those that it leaves out."""

    @property
    def failures_path(self) -> Path:
        """Envoy's log of what did not end well."""
        return self.directory / "failures.jsonl"

    @property
    def names(self) -> list[str]:
        """Of the workers."""
        return [server.name for server in self.tritons.servers]

    @property
    def envoy_listener(self) -> str:
        """Where the balancer listens for Envoy."""
        return str(self._addresses["listen"]["envoy"])

    def upstreams(self) -> dict[str, str]:
        """Worker by `host:port`, gRPC and HTTP."""
        ports = [(spec.name, port) for spec in self.tritons.specs for port in (spec.grpc_port, spec.http_port)]
        return {f"127.0.0.1:{port}": name for name, port in ports}

    def parts(self) -> dict[str, LocalProcess]:
        """All processes by name."""
        named: dict[str, LocalProcess] = {"balancer": self.balancer, "envoy": self.envoy}
        named |= {server.name: server for server in self.tritons.servers}
        return named | {f"agent of {name}": agent for name, agent in zip(self.names, self.agents, strict=True)}

    async def restart_envoy(self) -> None:
        """Start one in place of one that has ended; it listens when this returns."""
        self._envoy = self._new_envoy()
        await self.envoy.start()
        await self.envoy.wait_ready(_READY_S)

    async def start_agent(self, number: int) -> None:
        """Start one in place of one that has ended."""
        self.agents[number] = self._agent(self.tritons.servers[number])
        await self.agents[number].start()

    async def start_triton(self, number: int) -> None:
        """Start one in place of one that has ended, on its ports; it serves when this returns."""
        old = self.tritons.servers[number]
        new = TritonServer(
            name=old.name,
            model_repository=old.model_repository,
            grpc_port=old.grpc_port,
            http_port=old.http_port,
            metrics_port=old.metrics_port,
            log_path=old.log_path,
        )
        self.tritons.servers[number] = new
        await new.start()
        await new.wait_ready(_READY_S)

    def list_workers(self) -> None:
        """Write the list for discovery, by renaming."""
        specs = [spec for spec in self.tritons.specs if spec.name not in self.unlisted]
        drained = tuple(spec.model_copy(update={"draining": spec.name in self.draining}) for spec in specs)
        self.replace(self.directory / "workers.yaml", dump_workers(drained))

    def replace(self, path: Path, text: str) -> None:
        """Put any text in place of a file, by renaming."""
        draft = path.with_suffix(".new")
        draft.write_text(text)
        draft.rename(path)

    async def page(self, path: str) -> Any:
        """A JSON page of the balancer; None where it does not answer."""
        return await _get(f"http://{self.config.admin_address(0)}{path}")

    async def why_not(self, name: str) -> str:
        """Why the worker gets no requests; empty where it does, or where nobody answers."""
        page = await self.page(f"/explain?model={MODEL}")
        if page is None or "workers" not in page:
            return ""
        found = [worker for worker in page["workers"] if worker["worker"] == name]
        return str(found[0]["why_not"] or "") if found else "not listed"

    async def worker(self, name: str) -> Mapping[str, Any]:
        """Its line of /workers; empty where there is none."""
        page = await self.page("/workers")
        found = [worker for worker in (page or {"workers": ()})["workers"] if worker["worker"] == name]
        return found[0] if found else {}

    async def balancer_left_out(self) -> bool:
        """Whether Envoy asks the balancer no more, by its health checks."""
        page = await _get(f"{self.envoy.admin_url}/clusters?format=json")
        for cluster in (page or {}).get("cluster_statuses", ()):
            if cluster["name"] == "balancer":
                hosts = cluster.get("host_statuses", ())
                return bool(hosts) and all(host["health_status"].get("failed_active_health_check") for host in hosts)
        return False

    async def answered(self) -> int:
        """Answers of the balancer that Envoy got so far; -1 where Envoy does not say."""
        page = await _get(f"{self.envoy.admin_url}/stats?format=json&filter=^{_ANSWERS}$")
        return int(page["stats"][0]["value"]) if page and page.get("stats") else -1

    async def envoy_allocated_bytes(self) -> int | None:
        """What Envoy's allocator has handed out; None where Envoy does not say."""
        page = await _get(f"{self.envoy.admin_url}/memory")
        return int(page["allocated"]) if page else None

    def write_config(self, policy: str, **sections: Any) -> None:
        """As the gateway's, with mutual TLS. What a killed Envoy had sent is soon given up: workers are to be empty."""
        sections = {"requests": {"outcome_timeout_s": _OUTCOME_TIMEOUT_S}} | sections
        if self.certificates is not None:
            ours = self.certificates.sections()
            envoy = self._addresses["envoy"] | {"balancer_tls": ours["balancer_tls"]}
            sections = {"tls": ours["tls"], "envoy": envoy} | sections
        super().write_config(policy, **sections)

    def _agent(self, triton: TritonServer) -> Child:
        return agent_beside(
            triton,
            self._reports(),
            self.directory / f"{triton.name}-agent.log",
            control=self.control(triton.name),
            further=() if self.certificates is None else self.certificates.agent_arguments(triton.name),
        )

    def control(self, name: str) -> Path:
        """Socket of the worker's agent."""
        return self.directory / f"{name}.sock"

    def _new_envoy(self) -> EnvoyProcess:
        options = self.config.bootstrap_options()
        secrets = self.directory / "envoy"
        secrets.mkdir(exist_ok=True)
        text, files = render_with_secrets(options, secrets)
        for name, content in files.items():
            (secrets / name).write_text(content)
        bootstrap = yaml.safe_load(text)
        manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["access_log"].append(_failure_logger(self.failures_path))
        return EnvoyProcess(
            options=options,
            log_path=self.directory / "envoy.log",
            bootstrap=yaml.safe_dump(bootstrap),
            # What is not written yet when it is killed explains no failure.
            extra_args=("--file-flush-interval-msec", "100"),
        )


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


async def _get(url: str) -> Any:
    try:
        timeout = aiohttp.ClientTimeout(total=_PAGE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            return await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
        return None


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


__all__ = ["MODEL", "POLICY", "Deployment", "NotSoError", "hang", "until"]
