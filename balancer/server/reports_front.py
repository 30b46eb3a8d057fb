"""What agents and relays report of workers to this process."""

import asyncio
import functools
from collections.abc import Callable

from balancer.reports.collector import Collector, MaySpeak
from balancer.reports.intake import Intake
from balancer.reports.relayed import RelayCollector
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.events import Event
from balancer.scheduler.peers import is_told_all
from balancer.server.metrics import Metrics


class ReportsFront:
    def __init__(
        self,
        router: AnyRouter,
        metrics: Metrics,
        observe: Callable[[Event], None],
        may_speak: MaySpeak,
        pause_s: Callable[[], float],
    ) -> None:
        """`observe` is called with all that is heard; `may_speak` and `pause_s` as of `Collector`."""
        fleet = router.fleet
        intake = Intake(
            observe,
            refused=lambda field: metrics.refused_inputs.labels("report", field).inc(),
            failed=metrics.handler_errors.labels("report").inc,
        )
        prompts, told_all = fleet.untold_prompts.take, functools.partial(is_told_all, fleet)

        def knows(worker: str) -> bool:
            return worker in fleet.index

        self.counts = intake.counts
        self.of_agents = Collector(
            intake,
            may_speak=may_speak,
            at_worker=fleet.at_worker,
            told_all=told_all,
            prompts=prompts,
            knows=knows,
            pause_s=pause_s,
        )
        self.of_relays = RelayCollector(intake, prompts=prompts, knows=knows, pause_s=pause_s)

    async def wake(self) -> None:
        """Tell all at once that requests flow."""
        await asyncio.gather(self.of_agents.wake(), self.of_relays.wake())
