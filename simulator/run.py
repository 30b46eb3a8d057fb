"""Run a policy over arrivals: the one call behind commands, scoreboard and tests."""

from collections.abc import Callable, Sequence
from typing import Literal

from policies import Policy
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.result import Result
from simulator.spec import FleetSpec

Knowledge = Literal["reports", "exact", "clairvoyant"]


def run(
    fleet: FleetSpec | Sequence[FleetSpec],
    arrivals: Sequence[Arrivals],
    policy: Policy,
    *,
    seeds: Sequence[int] | None = None,
    knowledge: Knowledge = "reports",
    timeline_period_s: float = 0.0,
    progress: Callable[[int], None] | None = None,
    compiled: bool = True,
) -> Result:
    """Route every request of every environment.

    Args:
        fleet: One for all environments, or one for each.
        arrivals: One environment each; all of one length.
        policy: Decides.
        seeds: Of service noise, delays, faults and the policy's draws; the places in `arrivals` by default.
        knowledge: What the policy is shown. `reports`: as in production. `exact`: every queue as it is at the moment.
            `clairvoyant`: also the work that each queued and executing request really has left.
        timeline_period_s: Above 0: also record what is pending at each worker, so often.
        progress: Called now and then with the number of requests decided since the last call.
        compiled: Whether policies that the engine can decide by itself are; the decisions are the same.
    """
    fleets = [fleet] * len(arrivals) if isinstance(fleet, FleetSpec) else list(fleet)
    seeds = range(len(arrivals)) if seeds is None else seeds
    rows = 0
    if timeline_period_s > 0:
        rows = int(max((float(one.time_s[-1]) for one in arrivals), default=0.0) / timeline_period_s) + 1
    batch = Batch(
        fleets,
        arrivals,
        seeds,
        exact=knowledge == "exact",
        timeline_period_s=timeline_period_s,
        timeline_rows=rows,
    )
    if compiled and knowledge != "clairvoyant" and batch.run_inside(policy):
        if progress is not None:
            progress(sum(map(len, arrivals)))
        return batch.result()
    waiting = batch.start()
    while waiting:
        if progress is not None:
            progress(waiting)
        view = batch.true_view() if knowledge == "clairvoyant" else batch.view()
        waiting = batch.step(batch.draw(batch.probabilities(policy, view)))
    return batch.result()
