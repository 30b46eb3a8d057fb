"""Turns what the router and the gateway say into the lines of a decision log."""

from balancer.kernel.settings import Settings
from balancer.scheduler.after_decision import Answered, Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.selector import Role
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Finished, Withdrawn
from balancer.scheduler.fleet import Fleet
from balancer.server.decision_log import lines
from balancer.server.decision_log.files import DecisionFiles
from policies.base import Policy, Request
from policies.hashing import mix, unit

_SERVICE_PERIOD_S = 2.0
"""Between two rounds of what workers report of their executions."""


class Recording:
    """What one router decides, as lines; from the moment when it is the router's `observer`."""

    def __init__(
        self,
        router: AnyRouter,
        files: DecisionFiles,
        *,
        process: str,
        seed: int,
        share: float,
        now_s: float,
        unix_s: float,
    ) -> None:
        """`seed`: the router's; `now_s` and `unix_s`: the same moment in the router's clock and since 1970."""
        self._router = router
        self._files = files
        self._share = share
        self._workers_changes = -1
        self._settings: Settings | None = None
        self._service_row = 0
        self._service_due_s = now_s
        self._policies: list[tuple[Policy, Role]] = []
        """Those that have a line, and what each was there for; a policy's place is its number."""
        self._numbers: dict[tuple[int, Role], tuple[int, Policy]] = {}
        """By identity, which is quicker than equality, and kept, so that no other policy gets the same one."""
        files.put(lines.header(process, seed, share, now_s, unix_s, router.fleet.kernel.compiled), "header")

    def decided(self, answered: Answered, decision: Decision | None) -> None:
        """Record a decision, and whatever in it was not known yet."""
        if self._wants(answered.request.number):
            self._record(answered, decision, self._router.fleet)

    def _record(self, answered: Answered, decision: Decision | None, among: lines.NamedWorkers) -> None:
        self._record_settings()
        self._record_workers(among)
        answered_as = id(answered.policy), answered.role
        known = self._numbers.get(answered_as)
        if known is None:
            known = self._numbers[answered_as] = self._record_policy(answered.policy, answered.role), answered.policy
        self._files.put(lines.decision(answered, decision, known[0]))
        if answered.at_s >= self._service_due_s:
            self._record_service(self._router.fleet, answered.at_s)

    def refused(self, request: Request, error: RoutingError, at_s: float) -> None:
        if self._wants(request.number):
            self._record_settings()
            self._files.put(lines.refusal(request, error, at_s))

    def ended(self, event: Finished | Withdrawn, at_s: float) -> None:
        if event.number >= 0 and self._wants(event.number):
            self._files.put(lines.outcome(event, at_s))

    def began(self, number: int, at_s: float) -> None:
        """The first token of an answer has come."""
        if self._wants(number):
            self._files.put(lines.first_token(number, at_s))

    def no_inference(self, number: int) -> None:
        if self._wants(number):
            self._files.put(lines.no_inference(number))

    def _wants(self, number: object) -> bool:
        assert isinstance(number, int)  # arrays are for the simulator's views
        return self._share >= 1 or unit(mix(number)) < self._share

    def close(self) -> None: ...

    def _record_settings(self) -> None:
        if self._router.settings is not self._settings:
            self._settings = self._router.settings
            self._files.put(lines.settings(self._settings), "settings")

    def _record_workers(self, among: lines.NamedWorkers) -> None:
        if among.changes != self._workers_changes:
            self._workers_changes = among.changes
            self._files.put(lines.workers(among), "workers")

    def _record_service(self, fleet: Fleet, at_s: float) -> None:
        """One worker with each decision until all had their turn, so that no decision waits for a large fleet."""
        if self._service_row < len(fleet.workers):
            self._files.put(lines.service(fleet, self._service_row, at_s))
            self._service_row += 1
        else:
            self._service_row, self._service_due_s = 0, at_s + _SERVICE_PERIOD_S

    def _record_policy(self, policy: Policy, role: Role) -> int:
        """The number of a policy, whose line is written where none is equal to it."""
        known = (policy, role)
        if known not in self._policies:
            self._files.put(lines.policy(len(self._policies), *known), f"policy {len(self._policies)}")
            self._policies.append(known)
        return self._policies.index(known)
