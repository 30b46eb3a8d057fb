"""Which workers exist: one record for each, the source that tells, and what changed from one list to the next."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol, get_args

from pydantic import AfterValidator, ByteSize, Field, StringConstraints

from balancer.files.schema import Bytes, StrictModel, field_error, join_address, validate
from balancer.files.watch import versions
from balancer.files.yaml_document import ConfigError, dump, read_document, read_file
from balancer.scheduler.events import Event, WorkerAdded, WorkerRemoved, WorkersAdded


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        rule = "must be an IP address without port, because Envoy resolves no names it gets by EDS"
        raise ValueError(f"{rule}; have a name looked up by discovery.dns") from None


def _distinct(workers: Sequence[WorkerSpec]) -> Sequence[WorkerSpec]:
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    for position, worker in enumerate(workers):
        endpoints = {"grpc_port" if port == "grpc" else "http_port": at for port, at in worker.endpoints.items()}
        for field, value in {"name": worker.name, **endpoints}.items():
            first = seen.setdefault(("name" if field == "name" else "endpoint", value), (position, field))
            if first != (position, field):
                rule = f"is the {first[1]} of workers[{first[0]}] too; every worker needs a name and ports of its own"
                raise field_error((position, field), value, rule)
    return workers


Port = Annotated[int, Field(ge=1, le=65535)]
Ports = tuple[int, int]
PortName = Literal["grpc", "http", "openai"]
"""By what is asked there: Triton's two protocols, or OpenAI's API."""
WorkerProtocol = Literal["triton", "openai"]
PROTOCOLS: tuple[WorkerProtocol, ...] = get_args(WorkerProtocol)
ZONE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
"""As a label's value in Kubernetes."""
TRITON_PORTS: Ports = 8001, 8000
"""Triton's own defaults."""


class WorkerSpec(StrictModel):
    """One worker: a server, where it listens and what it is."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
    """Unique and stable, such as the pod's name. Reports, metrics and hashing go by it."""
    address: Annotated[str, AfterValidator(_ip)]
    """IP address."""
    protocol: WorkerProtocol = "triton"
    """`triton`: KServe's, by gRPC and HTTP. `openai`: OpenAI's API at `http_port`, as vLLM, `llama-server` and Triton's
    OpenAI front end have it."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] = TRITON_PORTS[0]
    """Triton's gRPC port; 0: it takes HTTP alone."""
    http_port: Port = TRITON_PORTS[1]
    """The HTTP port."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Capacity relative to the other workers."""
    device: str = ""
    """Device kind, such as `A100`; empty: what its agent reports."""
    memory_bytes: Bytes = ByteSize(0)
    """Device memory; 0: what its agent reports."""
    zone: Annotated[str, StringConstraints(pattern=ZONE)] = ""
    """Where it stands, in the words of `zones.own`; empty: unknown, which counts as near."""
    draining: bool = False
    """Whether it finishes what it has and is given nothing new."""

    @property
    def endpoints(self) -> dict[PortName, str]:
        """`address:port` of each port that requests go to, as a pick names it."""
        if self.protocol == "openai":
            return {"openai": join_address(self.address, self.http_port)}
        grpc: dict[PortName, str] = {"grpc": self.grpc_endpoint} if self.grpc_port else {}
        return {**grpc, "http": self.http_endpoint}

    @property
    def takes_grpc(self) -> bool:
        return "grpc" in self.endpoints

    @property
    def grpc_endpoint(self) -> str:
        """`address:grpc_port`, where it takes gRPC."""
        return join_address(self.address, self.grpc_port)

    @property
    def http_endpoint(self) -> str:
        """`address:http_port`."""
        return join_address(self.address, self.http_port)

    def added(self) -> WorkerAdded:
        return WorkerAdded(self.name, self.weight, self.device, int(self.memory_bytes), self.draining, self.zone)


WorkerList = Annotated[tuple[WorkerSpec, ...], AfterValidator(_distinct)]
"""Workers of distinct names and endpoints."""


class WorkerSource(Protocol):
    """Something that knows which workers exist."""

    def updates(self, stop: asyncio.Event) -> AsyncIterator[tuple[WorkerSpec, ...]]:
        """Yield the whole list, first as it is and then after every change, until `stop` is set.

        A list that cannot be had or read is no change: the last good one stays in force.
        """


def changes(old: Iterable[WorkerSpec], new: Iterable[WorkerSpec]) -> list[Event]:
    """What to tell the router when `new` replaces `old`: removals first, then at once what came or changed, as listed.

    A worker whose address or port changed is removed and added: another process answers there, and what was in flight
    at the former does not burden it.
    """
    before = {worker.name: worker for worker in old}
    after = {worker.name: worker for worker in new}

    def moved(worker: WorkerSpec) -> bool:
        known = before.get(worker.name)
        return known is not None and known.endpoints != worker.endpoints

    gone = [name for name in before if name not in after or moved(after[name])]
    came = tuple(
        worker.added()
        for worker in after.values()
        if worker.name not in before or moved(worker) or before[worker.name].added() != worker.added()
    )
    removed = [WorkerRemoved(name) for name in gone]
    return [*removed, WorkersAdded(came)] if came else [*removed]


class WorkersFile(StrictModel):
    workers: WorkerList
    """All workers; `[]` for none."""


def parse_workers(content: bytes | str, source: str) -> tuple[WorkerSpec, ...]:
    """The workers that a file's content lists.

    Raises:
        ConfigError: the content does not fit; an empty file is refused, so that a half-written one empties no fleet.
    """
    return validate(WorkersFile, read_document(content, source, "workers")).workers


def load_workers(path: Path) -> tuple[WorkerSpec, ...]:
    """The workers that the file at `path` lists.

    Raises:
        ConfigError: the file cannot be read or does not fit.
    """
    return parse_workers(read_file(path), str(path))


def endpoints_by_port(workers: Iterable[WorkerSpec]) -> dict[PortName, dict[str, str]]:
    """`address:port` of each worker, by name, of each port that it has."""
    found: dict[PortName, dict[str, str]] = {port: {} for port in get_args(PortName)}
    for worker in workers:
        for port, endpoint in worker.endpoints.items():
            found[port][worker.name] = endpoint
    return found


def dump_workers(workers: tuple[WorkerSpec, ...]) -> str:
    return dump(WorkersFile(workers=workers).model_dump(mode="json"))


class FileSource:
    """A `WorkerSource` that watches a file; what does not fit goes to `on_error` and changes nothing."""

    def __init__(self, path: Path, on_error: Callable[[ConfigError], None]) -> None:
        self._path = path
        self._on_error = on_error

    async def updates(self, stop: asyncio.Event) -> AsyncGenerator[tuple[WorkerSpec, ...], None]:
        """The list of workers, first as it is and then after every change, until `stop` is set."""
        last: tuple[WorkerSpec, ...] | None = None
        async with contextlib.aclosing(versions(self._path, stop)) as contents:
            async for content in contents:
                try:
                    if isinstance(content, ConfigError):
                        raise content
                    workers = await asyncio.to_thread(parse_workers, content, str(self._path))
                except ConfigError as error:
                    self._on_error(error)
                    continue
                if workers != last:
                    last = workers
                    yield workers
