"""Names of workers to addresses and back, for gateways that know only addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from balancer.discovery.workers import WorkerSpec


class Addresses:
    """The addresses of the workers that discovery lists."""

    def __init__(self, workers: Sequence[WorkerSpec] = ()) -> None:
        self._grpc = {worker.name: worker.grpc_endpoint for worker in workers}
        self._http = {worker.name: worker.http_endpoint for worker in workers}
        self._names = {endpoint: name for table in (self._grpc, self._http) for name, endpoint in table.items()}
        self._at: dict[str, list[str]] = {}
        for worker in workers:
            self._at.setdefault(worker.address, []).append(worker.name)

    def of(self, names: Iterable[str], grpc: bool, within: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """`address:port` of each worker that is listed, in order; as `within` names them, where there is one."""
        table = within if within is not None else self._grpc if grpc else self._http
        return tuple(table[name] for name in names if name in table)

    def name(self, endpoint: str) -> str:
        """The worker at `address:port`, empty if none is listed there."""
        return self._names.get(endpoint, "")

    def within(self, endpoints: Iterable[str], grpc: bool) -> dict[str, str]:
        """The workers that a gateway allows, each with the endpoint by which it does.

        Args:
            endpoints: `address:port` of either protocol, or an address alone, which allows all workers there.
            grpc: The request's protocol, whose port is taken where both are allowed, or none is named.
        """
        own = self._grpc if grpc else self._http
        allowed: dict[str, str] = {}
        for endpoint in endpoints:
            name = self._names.get(endpoint)
            if name is not None:
                allowed[name] = own[name] if allowed.get(name) == own[name] else endpoint
            for name in self._at.get(endpoint.strip("[]"), ()):
                allowed[name] = own[name]
        return allowed
