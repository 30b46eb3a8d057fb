"""Names of workers to addresses and back, for gateways that know only addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from balancer.discovery.workers import WorkerSpec


class Addresses:
    """The addresses of the workers that discovery lists."""

    def __init__(self, workers: Sequence[WorkerSpec] = ()) -> None:
        self._grpc = {worker.name: worker.grpc_endpoint for worker in workers}
        self._http = {worker.name: worker.http_endpoint for worker in workers}
        self._names = {endpoint: name for table in (self._grpc, self._http) for name, endpoint in table.items()}

    def of(self, names: Iterable[str], grpc: bool) -> tuple[str, ...]:
        """`address:port` of each worker that is listed, in order."""
        table = self._grpc if grpc else self._http
        return tuple(table[name] for name in names if name in table)

    def name(self, endpoint: str) -> str:
        """The worker at `address:port`, empty if none is listed there."""
        return self._names.get(endpoint, "")

    def names(self, endpoints: Iterable[str]) -> frozenset[str]:
        """The workers at any of the endpoints."""
        return frozenset(self._names[endpoint] for endpoint in endpoints if endpoint in self._names)
