"""An admin interface over a router in this process, with traffic, for tests of the page; its clock stands still."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from balancer.config.config import Config
from balancer.config.watch import ConfigState
from balancer.scheduler.events import ReportsLost, WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.admin.pages import Admin
from balancer.server.events import EventLog
from balancer.server.metrics import Metrics
from balancer.server.page.page_data import AdminSources, PageData
from balancer.server.tally import OutcomeKey, Recent
from policies.base import Policy
from policies.wlpr import WeightedLeastPending
from support.fleets import model, report

NOW_S = 10.0


class PageFleet:
    """Three workers or more, each with models `m` and `n`."""

    def __init__(
        self,
        workers: int = 3,
        policy: Policy | None = None,
        names: dict[int, str] | None = None,
        models: Any = ("m", "n"),
    ) -> None:
        """`names`: other names than `worker-NUMBER`, by number."""
        self.now_s = NOW_S
        self.router = Router(policy or WeightedLeastPending())
        self.names = [(names or {}).get(number, f"worker-{number}") for number in range(workers)]
        self.models = tuple(models)
        for name in self.names:
            self.router.observe(WorkerAdded(name, device="A100"), NOW_S)
        for name in self.names:
            self.report(name)
        self.recent = Recent()
        self.metrics = Metrics(self.router, lambda: self.now_s)
        self.events = EventLog()
        self.state = ConfigState(Config(), "balancer.yaml", 1000.0)
        self.not_ready = ""
        self.drained: set[str] = set()
        """By hand."""

    def report(self, name: str, number: int = 1, **fields: Any) -> None:
        reported = [model(each, pending=float(len(name) % 3)) for each in self.models]
        self.router.observe(report(name, number, models=reported, utilisation=0.5, **fields), self.now_s)

    def traffic(self, policy: str = "wlpr", count: int = 200) -> None:
        """Some outcomes, one of which is an error."""
        for number, name in zip(range(count), itertools.cycle(self.names), strict=False):
            of = OutcomeKey(self.models[number % 4 == 0 and len(self.models) > 1], name, policy)
            self.recent.add([self.now_s - 1 + number / count], [0.01 + number / 10_000], number != 7, True, of)

    def break_some(self) -> None:
        """Some workers have it, and others were refused."""
        self.router.observe(ReportsLost(self.names[1]), self.now_s)
        self.report(self.names[2], 2, ready=False)
        if len(self.names) > 3:
            self.report(self.names[3], 2, draining=True)
        self.events.add("worker", "warning", f"no report for more than 1 s: {self.names[1]}")
        self.metrics.refusals.labels("no_worker").inc(3)

    def sources(self) -> AdminSources:
        return AdminSources(
            self.router,
            self.metrics,
            lambda: self.now_s,
            lambda: self.not_ready,
            lambda: self.recent,
            self.state,
            self.events,
            drains=self.drained,  # type: ignore[arg-type]  # all that is asked of it is who is in it
        )

    def page_data(self) -> PageData:
        return PageData(self.sources())

    @asynccontextmanager
    async def served(self, **options: Any) -> AsyncIterator[tuple[Admin, str]]:
        """The admin interface, and its URL."""
        admin = Admin(self.sources(), **options)
        port = await admin.start("127.0.0.1:0")
        try:
            yield admin, f"http://127.0.0.1:{port}"
        finally:
            await admin.stop()
