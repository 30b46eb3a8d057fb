"""The deployment under test, with mutual TLS between its parts, each of which can be killed, hung and started again."""

import contextlib
import datetime
import os
import signal
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from support.certificates import Authority, shown_serial
from support.waiting import eventually

from balancer.stack.process import Child, LocalProcess
from balancer.stack.stack import OwnStack, get_json
from balancer.stack.tritonserver import TritonServer
from dev.stack import MODEL, new_tritons
from soak.load import ID_HEADER

_SERVER_NAME = "balancer.test"
_ANSWERS = "http.inference.ext_proc.stream_msgs_received"
_PAGE_S = 1.0
_OUTCOME_TIMEOUT_S = 20.0
until = partial(eventually, patience_s=30.0)
"""AssertionError where that does not come: the event has failed."""
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
    "upstream": "%UPSTREAM_HOST%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "status": "%RESPONSE_CODE%",
    "grpc": "%GRPC_STATUS%",
}


class Deployment(OwnStack):
    """Envoy, a balancer, and Tritons with agents, by their own handles."""

    def __init__(self, directory: Path, workers: int) -> None:
        super().__init__(directory, tritons=new_tritons(directory, workers))
        self.names = [triton.name for triton in self.tritons]
        self.draining: set[str] = set()
        """Workers that discovery lists as such."""
        self.unlisted: set[str] = set()
        """And those that it leaves out."""
        self.failures_path = directory / "failures.jsonl"
        """Envoy's log of what did not end well."""
        self._authority = Authority(directory / "tls")
        self.rotate_certificates()
        # What is not written yet when it is killed explains no failure.
        self.envoy_arguments = ("--file-flush-interval-msec", "100")
        overlay = directory / "overlay.yaml"
        overlay.write_text(yaml.safe_dump(_failure_logger(self.failures_path)))
        ours = self._balancer.section(self._authority)
        towards = {"ca_file": ours["client_ca_file"], "server_name": _SERVER_NAME}
        towards |= {"cert_file": str(self._envoy.cert), "key_file": str(self._envoy.key)}
        self.addresses["envoy"] |= {"balancer_tls": towards, "overlay": str(overlay)}
        self.addresses["tls"] = {"envoy": ours, "reports": ours}
        # What a killed Envoy had sent is soon given up: workers are to be empty.
        self.addresses["requests"] = {"outcome_timeout_s": _OUTCOME_TIMEOUT_S}

    def rotate_certificates(self) -> None:
        """Give every part a new certificate and key of the same authority."""
        days = datetime.timedelta(days=2)
        self._balancer = self._authority.issue("balancer", dns=_SERVER_NAME, ip="127.0.0.1", until=days)
        self._envoy = self._authority.issue("envoy", uri="spiffe://balancer/envoy", until=days)
        self._agents = {
            name: self._authority.issue(name, uri=f"spiffe://balancer/agent/{name}", until=days) for name in self.names
        }

    def new_certificate_served(self) -> bool:
        """Whether the balancer shows its certificate as the file has it now."""
        context = ssl.create_default_context(cafile=str(self._authority.file))
        context.load_cert_chain(self._envoy.cert, self._envoy.key)
        with contextlib.suppress(OSError):
            return shown_serial(self.addresses["listen"]["envoy"], context, _SERVER_NAME) == self._balancer.serial
        return False

    def new_agent(self, triton: TritonServer, further: Sequence[str] = (), control: Path | None = None) -> Child:
        """As of `OwnStack`, with a certificate and a control socket."""
        own = self._agents[triton.name]
        tls = ("--tls-ca", str(self._authority.file), "--tls-name", _SERVER_NAME)
        tls += ("--tls-cert", str(own.cert), "--tls-key", str(own.key))
        return super().new_agent(triton, (*tls, *further), control or self.control(triton.name))

    def control(self, name: str) -> Path:
        return self.directory / f"{name}.sock"

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


def _failure_logger(path: Path) -> dict[str, Any]:
    """An overlay with a log of requests that did not end well: a line for each would cost what is measured."""
    log = {
        "name": "soak",
        "filter": {"or_filter": {"filters": [*_NOT_WELL]}},
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": str(path),
            "log_format": {"json_format": _LOGGED},
        },
    }
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": {"access_log": [log]}}
    chain = {"name": "inference", "filters": [manager]}
    return {"static_resources": {"listeners": [{"name": "inference", "filter_chains": [chain]}]}}


def hang(part: LocalProcess, stopped: bool = True) -> None:
    """Stop a process and its children, or let them go on."""
    os.killpg(part.process.pid, signal.SIGSTOP if stopped else signal.SIGCONT)
