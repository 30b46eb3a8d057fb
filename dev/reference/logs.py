"""Decision logs of simulated fleets: the reference simulator runs production's router, which is recorded as there."""

from pathlib import Path

from balancer.scheduler.events import Finished, Withdrawn
from balancer.server.decision_log.files import DecisionFiles
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog
from balancer.server.decision_log.recording import Recording
from dev.reference.batcher import LiveRequest
from dev.reference.simulation import Simulation
from policies.base import Policy
from simulator.arrivals import Arrivals
from simulator.spec import FleetSpec

UNIX_S = 1_700_000_000.0
"""When runs begin."""


class _Recorded(Simulation):
    """Each balancer is a process with a log of its own."""

    def record_to(self, folder: Path) -> list[DecisionFiles]:
        files = [DecisionFiles(folder, str(b), 2**30, 100) for b in range(self.fleet.balancers)]
        self.recordings = [
            Recording(router, own, process=str(b), seed=(self.world.seed << 8) + b, share=1.0, now_s=0.0, unix_s=UNIX_S)
            for b, (router, own) in enumerate(zip(self.world.routers, files, strict=True))
        ]
        for router, recording in zip(self.world.routers, self.recordings, strict=True):
            router.observer = recording
        return files

    def _begin(self, request: LiveRequest) -> None:
        super()._begin(request)
        self.recordings[request.balancer].began(request.number, self.clock.now_s)

    def _observe(self, request: LiveRequest, outcome: Finished | Withdrawn) -> None:
        super()._observe(request, outcome)
        self.recordings[request.balancer].ended(outcome, self.clock.now_s)


def simulated_log(folder: Path, fleet: FleetSpec, arrivals: Arrivals, policy: Policy, seed: int = 0) -> DecisionLog:
    """Record a simulated run there, and read it back."""
    simulation = _Recorded(fleet, arrivals, policy, seed)
    files = simulation.record_to(folder)
    simulation.run()
    for each in files:
        each.close(wait_s=30)
    return read_log(folder)
