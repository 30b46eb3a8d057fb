"""Environments side by side, stopped at each decision: what policies in NumPy, and Gymnasium, step through."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.estimators.columns import declared
from balancer.kernel.state import Options
from balancer.scheduler.keys import OF_SEQUENCES, STICKY, placing
from policies.base import BoolArray, FleetView, FloatArray, IntArray, Policy, Request
from simulator.arrivals import Arrivals, Prompts
from simulator.engine import layout as at
from simulator.engine import loop, rows, truth
from simulator.engine.allocate import PromptRoom, allocate, check_fits
from simulator.engine.check import check_arrivals, check_fleet
from simulator.engine.deciders import decider, placer
from simulator.engine.fill import EngineTables, fill
from simulator.engine.holding import have_held
from simulator.result import Result, Status
from simulator.spec import FleetSpec
from simulator.view import BatchView, TrueView


class Batch:
    """`e` environments of at most `n` workers, each with `k` requests.

    After `start` (or `load`) and after every `step`, `waiting` says which environments have a request to be decided;
    `request`, `view` and `now_s` then tell of it. In the others they are stale. Estimator settings must be alike.
    """

    def __init__(
        self,
        fleets: Sequence[FleetSpec],
        arrivals: Sequence[Arrivals],
        seeds: Sequence[int],
        *,
        exact: bool = False,
        timeline_period_s: float = 0.0,
        timeline_rows: int = 0,
        sequences_outside: bool = False,
    ) -> None:
        """Allocate for the largest of the fleets and fill all; nothing has happened yet.

        Args:
            fleets: One for each environment, as all that follow.
            arrivals: Of one length.
            seeds: Of all that is random but the arrivals.
            exact: Whether balancers know every queue as it is.
            timeline_period_s: Above 0: how often what is pending is recorded.
            timeline_rows: Room for so many of these records.
            sequences_outside: Whether to stop at requests of sequences as well, whose workers no policy picks.
        """
        if not len(fleets) == len(arrivals) == len(seeds):
            raise ValueError(
                f"{len(fleets)} fleets, {len(arrivals)} arrivals and {len(seeds)} seeds: give as many of each"
            )
        requests = {len(one) for one in arrivals}
        if len(requests) != 1:
            raise ValueError(f"arrivals have {sorted(requests)} requests: give every environment as many")
        for fleet, one in zip(fleets, arrivals, strict=True):
            check_fleet(fleet)
            check_arrivals(fleet, one)
        self.sim = allocate(fleets, arrivals, timeline_rows)
        self.native = Native(self.sim)
        self.fleets = list(fleets)
        self.waiting: BoolArray = np.zeros(len(fleets), np.bool_)
        self._tables = EngineTables(self.sim.plan)
        self._timeline_period_s = timeline_period_s
        self.sim.plan.env[:, at.E_EXACT], self.sim.plan.env[:, at.E_TIMELINE] = exact, timeline_period_s
        self.sim.plan.env[:, at.E_SEQUENCES_OUTSIDE] = sequences_outside
        self._no_options = Native(Options(np.zeros(1)))
        self._everyone = np.arange(len(fleets))
        self._keyed = any(one.keyed for one in arrivals)
        self._placed: BoolArray = np.zeros(len(fleets), np.bool_)
        for e, (fleet, one, seed) in enumerate(zip(fleets, arrivals, seeds, strict=True)):
            self._fill(e, fleet, one, seed)

    @classmethod
    def of_room(cls, room: FleetSpec, environments: int, requests: int, prompts: PromptRoom) -> Batch:
        """Environments with room for such a fleet and so many requests, for runs that are put there by `load`."""
        columns = {field.name for field in dataclasses.fields(Arrivals)}
        demand = [(name, declared_as) for name, declared_as in declared(at.EngineDemand).items() if name in columns]
        values: dict[str, Any] = {name: np.full(requests, start, kind) for name, (_, kind, start) in demand}
        # One request has all the blocks.
        ones, blocks = np.ones(requests, np.int32), np.zeros(requests, np.int32)
        blocks[0], tokens = prompts.blocks, np.maximum(ones, prompts.blocks)
        texts = Prompts(tokens, ones, blocks, 1, np.arange(prompts.blocks) % prompts.names)
        nothing = Arrivals(**values, prompts=texts if room.generates else None)
        return cls([room] * environments, [nothing] * environments, [0] * environments)

    def _fill(self, e: int, fleet: FleetSpec, arrivals: Arrivals, seed: int) -> None:
        fill(self.sim, self._tables, e, fleet, arrivals, seed)
        # Where the router's hash places keys, under a policy that does not go by them.
        self._placed[e] = fleet.settings.sticky_keys and arrivals.keyed
        loop.begin(self.native, e)
        self.fleets[e] = fleet

    def load(self, e: int, fleet: FleetSpec, arrivals: Arrivals, seed: int) -> None:
        """Put environment `e` to the start of another run, at its first decision; it must fit the arrays.

        Raises `ValueError` where it does not.
        """
        check_fleet(fleet)
        check_arrivals(fleet, arrivals)
        check_fits(self.sim, fleet, arrivals)
        self._keyed = self._keyed or arrivals.keyed
        self._fill(e, fleet, arrivals, seed)
        self._check_outside()
        only = self._everyone == e
        loop.advance(self.native, self._everyone, only, loop.OUTSIDE, self._no_options)
        self.waiting[e] = only[e]

    def start(self) -> int:
        """Go on to the first decision of each environment; returns how many wait."""
        self.waiting[:] = True
        return self.step(self._everyone)

    def step(self, workers: IntArray) -> int:
        """Send what waits to these workers, `(e,)` (-1: shed it), and go on; returns how many wait now."""
        self._check_outside()
        return int(loop.advance(self.native, workers, self.waiting, loop.OUTSIDE, self._no_options))

    def _check_outside(self) -> None:
        """Raise `ValueError` where requests are held: who is held is asked for in turns, by the engine alone."""
        if self.sim.plan.env[:, at.E_HOLDS].any():
            raise ValueError(
                "settings.holding names models, and only a policy that the engine compiles may hold requests: choose a "
                "policy that ships, or leave holding.models empty"
            )

    def run_inside(self, policy: Policy, workers: IntArray | None = None) -> bool:
        """Run to the end with a policy that the engine decides as itself; False, and nothing done, where it cannot.

        What waits already, as it does after `load`, has been left to the caller: `workers` says where it goes, `(e,)`.
        """
        if workers is None and self.waiting.any():
            raise ValueError("requests wait for a decision already: give their workers")
        own_holding = type(policy).holds is not Policy.holds or type(policy).urgency is not Policy.urgency
        if own_holding and self.sim.plan.env[:, at.E_HOLDS].any():
            raise ValueError(f"policy {policy.name} says itself who is held, which is not simulated: choose another")
        found = decider(policy, self.native, self.sim.sizes.workers)
        if found is None:
            return False
        if self.sticky(policy):
            self.sim.plan.env[self._placed, at.E_PLACER] = placer(self.native, found.options)
        have_held(self.native, found.options, self.sim.plan.env, found.address)
        self.waiting[:] = True
        workers = self._everyone if workers is None else workers
        loop.advance(self.native, workers, self.waiting, found.address, found.options)
        return True

    @property
    def deciding(self) -> IntArray:
        """Index of the request that waits in each environment, `(e,)`; 0 where none does."""
        return np.maximum(self.sim.state.counts[:, at.DECIDING], 0)

    @property
    def now_s(self) -> FloatArray:
        """Time of each environment, `(e,)`."""
        return self.sim.state.clock[:, at.NOW]

    def request(self) -> Request:
        """What waits, as policies see it; fields of shape `(e, 1)`, model and tenant empty."""
        pending = self.sim.pending
        return Request(
            model="",
            rows=pending.rows[:, None],
            number=pending.number[:, None],
            key=pending.key[:, None] if self._keyed else None,
            deadline_s=pending.deadline_s[:, None],
            priority=pending.priority[:, None],
            prompt_tokens=pending.prompt_tokens[:, None],
        )

    def view(self) -> BatchView:
        """The fleets at this moment, as the deciding balancers see them; holds until the next step."""
        return BatchView(self.sim, self.native, self.fleets[0].settings.estimators)

    def true_view(self) -> TrueView:
        """The fleets as they really are; holds until the next step.

        Raises `ValueError` where a model generates: what is before a worker then, nobody works out.
        """
        if self.sim.plan.model[:, at.M_STEP_TOKENS].any():
            raise ValueError("models that generate have no true view: compare without references that know everything")
        view = self.view()
        shape = self.sim.decision.mask.shape
        pending, backlog_s, completion_s = (np.zeros(shape) for _ in range(3))
        truth.see(self.native, self.waiting, pending, backlog_s, completion_s)
        return TrueView(view, pending, backlog_s, completion_s)

    def sticky(self, policy: Policy) -> bool:
        """Whether some requests are not the policy's to decide, since their keys are."""
        return placing(policy, keyed=True, sticky_keys=bool(self._placed.any())) is not policy

    def probabilities(self, policy: Policy, view: FleetView | None = None) -> FloatArray:
        """The policy's answers, those of the sticky hash where a key places the request; `(e, n)`."""
        view = view or self.view()
        answers = self.answers(policy, view)
        if not self.sticky(policy):
            return answers
        return np.where(self.placed[:, None], self.sticky_answers(view), answers)

    @property
    def placed(self) -> BoolArray:
        """Where the request's key places it, unless the policy goes by keys itself; `(e,)`."""
        placed: BoolArray = self._placed & (self.sim.pending.key != 0)
        return placed

    def answers(self, policy: Policy, view: FleetView) -> FloatArray:
        """The policy's own, also where a key places the request; `(e, n)`."""
        request = self.request()
        if request.key is None or not policy.needs_key:
            return rows.answer(policy, request, view)
        keyed = np.asarray(request.key) != 0
        answers = rows.answer(policy, _with_key(request), view)
        if keyed.all():
            return answers
        return np.where(keyed, answers, rows.answer(policy, dataclasses.replace(request, key=None), view))

    def sticky_answers(self, view: FleetView) -> FloatArray:
        """Those of the sticky hash, `(e, n)`; of no meaning where a request has no key."""
        return rows.answer(STICKY, _with_key(self.request()), view)

    def answers_of_sequences(self, view: FleetView) -> FloatArray:
        """Those of the hash that places sequences, `(e, n)`; of no meaning where a request belongs to none."""
        request = dataclasses.replace(self.request(), key=self.sim.pending.key[:, None])
        return rows.answer(OF_SEQUENCES, _with_key(request), view)

    def draw(self, probabilities: FloatArray) -> IntArray:
        """`Router.route`'s draws, `(e,)`; -1 where all are zero."""
        choices = np.empty(len(self.waiting), np.int64)
        loop.draw(np.ascontiguousarray(probabilities, np.float64), self.sim.pending.uniform, choices)
        return choices

    def _of_prompts(self, column: at.AnyArray) -> FloatArray:
        """Of requests that have a prompt, else NaN; `(e, k)`."""
        step_tokens = self.sim.plan.model[:, at.M_STEP_TOKENS].reshape(len(self.fleets), -1)
        generates = np.take_along_axis(step_tokens, self.sim.demand.model.astype(np.int64), axis=1) > 0
        # Where nobody generates, the column is a single one.
        return np.where(generates, column, np.nan)

    def result(self) -> Result:
        x, d = self.sim.state, self.sim.demand
        n = self.sim.sizes.workers
        to_client_s = np.array([[fleet.network.to_client_s] for fleet in self.fleets])
        status = np.where(np.isin(x.status, (at.LOST, at.REFUSED)), Status.ERROR, x.status).astype(np.int8)
        answered = np.isin(status, (Status.OK, Status.ERROR, Status.UNAVAILABLE))
        latency_s = x.resolved_s + np.where(answered, to_client_s, 0.0) - x.arrived_s
        timeline_rows = int(x.counts[:, at.TIMELINE_ROW].min())
        return Result(
            arrival_s=x.arrived_s.copy(),
            latency_s=np.where(status == Status.UNFINISHED, np.nan, latency_s),
            first_s=np.where(status == Status.OK, x.first_s + to_client_s - x.arrived_s, np.nan),
            prompt_tokens=self._of_prompts(d.tokens),
            cached_tokens=self._of_prompts(x.cached),
            matched_tokens=self._of_prompts(x.matched),
            status=status,
            worker=np.where(np.isin(status, (Status.OK, Status.ERROR)), x.server, -1).astype(np.int16),
            picked=x.picked.copy(),
            attempts=x.attempts.copy(),
            model=d.model.copy(),
            rows=d.rows.copy(),
            deadline_s=d.deadline_s.copy(),
            priority=d.priority.copy(),
            tenant=d.tenant.copy(),
            pending_integral_s=x.clock[:, at.INTEGRAL].copy(),
            end_s=np.nanmax(x.resolved_s, axis=1, initial=0.0),
            busy_s=x.real[:, at.BUSY].reshape(-1, n).copy(),
            executions=x.whole[:, at.STARTED].reshape(-1, n).copy(),
            timeline_s=np.arange(timeline_rows, dtype=np.float64) * self._timeline_period_s,
            timeline_pending=x.timeline[:, :timeline_rows].copy(),
            workers=tuple(worker.name for worker in self.fleets[0].workers),
            models=tuple(model.name for model in self.fleets[0].models),
        )


def _with_key(request: Request) -> Request:
    """The same, with the number for a key where it has none."""
    assert request.key is not None  # the caller looked
    return dataclasses.replace(request, key=np.where(np.asarray(request.key) != 0, request.key, request.number))
