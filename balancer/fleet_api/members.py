"""Which workers a call concerns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from balancer.discovery.workers import WorkerSpec
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.worker import objections


class Members:
    """The workers that discovery lists, and what the router knows of them."""

    def __init__(self, router: AnyRouter) -> None:
        self._router = router
        self.listed: tuple[WorkerSpec, ...] = ()

    @property
    def names(self) -> list[str]:
        return [worker.name for worker in self.listed]

    def serving(self) -> list[str]:
        """Those that are not about to end; where all are, all."""
        fleet = self._router.fleet
        ending = {worker.name for worker in fleet.workers if worker.draining or worker.stopping}
        return [name for name in self.names if name not in ending] or self.names

    def of_model(self, model: str, version: str) -> list[str]:
        """Those that may serve a model. Where none may, one, whose Triton says why."""
        return self._able(model, version) or self._any()

    def _able(self, model: str, version: str) -> list[str]:
        fleet = self._router.fleet
        servable = fleet.servable(model, version)
        able = {worker.name for worker, may in zip(fleet.workers, servable, strict=True) if may}
        return [name for name in self.names if name in able]

    def _any(self) -> list[str]:
        return (self._able("", "") or self.serving())[:1]

    def serve(self, names: Sequence[str], model: str) -> bool:
        """Whether the router knows that these have a model, as far as they are not about to end."""
        able, serving = {*self._able(model, "")}, {*self.serving()}
        return all(name in able for name in names if name in serving)

    def that_counted(self, model: str) -> list[str]:
        """Those that may have statistics of a model: all, where the fleet knows it. Else one, whose Triton says so."""
        return self.names if not model or self._router.fleet.knows(model) else self._any()

    def to_load(self, model: str) -> list[str]:
        """Those that the model table lets have a model, whether or not they have it now."""
        fleet = self._router.fleet
        # Of all that speaks against a worker, what the table says alone.
        settings = dataclasses.replace(fleet.settings, reports_required=False)
        allowed = set()
        for worker in fleet.workers:
            new = dataclasses.replace(worker, number=-1, draining=False, stopping=False)
            if not any(objections(new, settings, model, "")):
                allowed.add(worker.name)
        return [name for name in self.names if name in allowed]

    def incarnations(self) -> dict[str, tuple[str, int]]:
        """Where each listed worker is, and which of its lives it has: both change with what it has forgotten. Those are
        left out whose agent is yet to report.
        """
        fleet = self._router.fleet
        known = {worker.name: worker for worker in fleet.workers}
        awaited = fleet.settings.reports_required
        return {
            each.name: (each.grpc_endpoint, known[each.name].incarnation)
            for each in self.listed
            if each.name in known and not (awaited and known[each.name].number < 0)
        }
