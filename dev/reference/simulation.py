"""Requests, from their arrival to their end."""

import math

from balancer.scheduler.after_decision import Decision
from balancer.scheduler.canary.selector import CanaryPlan, Role
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed
from balancer.scheduler.events import Finished, FirstToken, Void, Withdrawn
from balancer.scheduler.holding.waiting import Departure
from dev.reference.arriving import Arriving
from dev.reference.batcher import LiveRequest
from dev.reference.clock import Kind, Stream
from dev.reference.device import Execution
from dev.reference.faults import Faults
from dev.reference.peers import Peers
from dev.reference.record import Executed, Record
from dev.reference.reports import Reports
from dev.reference.worker import Worker
from dev.reference.world import World
from policies.base import Policy, Request
from simulator.arrivals import Arrivals
from simulator.result import Result, Status
from simulator.spec import FleetSpec, Noise

ALONE = CanaryPlan()


def simulate(fleet: FleetSpec, arrivals: Arrivals, policy: Policy, seed: int, timeline_period_s: float = 0.0) -> Result:
    """One environment, so `(1, k)`; see `Simulation` for what else it tells."""
    return Simulation(fleet, arrivals, policy, seed, timeline_period_s).run()


class Simulation:
    def __init__(
        self,
        fleet: FleetSpec,
        arrivals: Arrivals,
        policy: Policy,
        seed: int,
        timeline_period_s: float = 0.0,
        plan: CanaryPlan = ALONE,
    ) -> None:
        self.fleet = fleet
        self.arrivals = arrivals
        self._arriving = Arriving(fleet, arrivals)
        self.world = World(fleet, policy, seed, plan, self._arriving.prompts.block_tokens)
        self.clock = self.world.clock
        self.record = Record(arrivals, timeline_period_s)
        self.decided: list[int] = []
        """The worker picked by each decision."""
        self.roles: list[Role | None] = [None] * len(arrivals)
        """The role of the policy that answered to each request; None: none was to."""
        self.executed: list[Executed] = []
        self._reports = Reports(self.world, self._turn)
        self._faults = Faults(self.world, self._reports, self._lose, self._reschedule, self._turn_all)
        self._held: dict[tuple[int, int], LiveRequest] = {}
        """By balancer and place."""
        self._peers = Peers(self.world, self._turn_all)
        self._sent = self._ended = self._unheard = 0
        """Requests that were sent, that ended, and outcomes that balancers have not observed yet."""
        self._next = len(arrivals)
        """The next request of a closed loop."""

    def run(self) -> Result:
        self._set_up()
        while (self.record.unended or self._unheard) and self.clock.ending:
            self.clock.step()
        return self.record.result(self.world)

    def _set_up(self) -> None:
        world, clock, arrivals = self.world, self.clock, self.arrivals
        for router in world.routers:
            router.fleet.add_models([model.name for model in self.fleet.models])
        for worker in world.workers:
            if worker.state == "up":
                world.tell(worker.added)
        self._tick()
        self._reports.start()
        self._faults.start()
        clock.every(1.0, Kind.TICK, self._tick)
        if self.record.timeline_period_s > 0:
            clock.every(self.record.timeline_period_s, Kind.TIMELINE, self._sample_timeline)
        if arrivals.clients:
            self._next = min(arrivals.clients, len(arrivals))
        for index in range(self._next):
            clock.at(float(arrivals.time_s[index]), Kind.ARRIVAL, (index,), self._arrive, index, index)

    def _tick(self) -> None:
        for router in self.world.routers:
            router.tick(self.clock.now_s)
        self._turn_all()

    def _sample_timeline(self) -> None:
        self.record.sample(self.clock.now_s, [worker.pending for worker in self.world.workers])

    # A request's way to a worker.

    def _arrive(self, index: int, client: int) -> None:
        request = self._arriving.request(index, client, self.clock.now_s)
        self.record.arrived(request)
        if (patience_s := float(self._arriving.extras.patience_s[index])) < math.inf:
            self.clock.at(self.clock.now_s + patience_s, Kind.GIVE_UP, (index,), self._give_up, request)
        generates = self.fleet.models[request.model].generation is not None
        features = Request(
            model=self.fleet.models[request.model].name,
            rows=request.rows,
            key=request.key or None,
            deadline_s=float(self.arrivals.deadline_s[index]),
            priority=int(self.arrivals.priority[index]),
            tenant=self._tenant(int(self.arrivals.tenant[index])),
            sequence=request.sequence >= 0,
            prompt_tokens=float(request.tokens) if generates else 0.0,
            prefix=self._arriving.prefix(index) if generates else (),
        )
        waiting = self.world.waiting[request.balancer]
        outcome: int | Decision | RoutingError
        try:
            if waiting.holds(features):
                outcome = waiting.hold(features, self.clock.now_s)
            else:
                outcome = self.world.routers[request.balancer].route(features, self.clock.now_s)
        except (NoEligibleWorker, Shed) as error:
            outcome = error
        if isinstance(outcome, int):
            self._held[request.balancer, outcome] = request
            request.place = outcome
            at_s = self.clock.now_s + self.fleet.settings.holding.max_s
            self.clock.at(at_s, Kind.HELD_LONG, (index,), self._expire, request.balancer)
            self._turn(request.balancer)
        else:
            self._place(request, outcome)

    def _turn(self, balancer: int) -> None:
        """Who is held is asked for again."""
        self._let_go(balancer, self.world.waiting[balancer].dispatch(self.clock.now_s))

    def _turn_all(self) -> None:
        for balancer in range(self.fleet.balancers):
            self._turn(balancer)

    def _expire(self, balancer: int) -> None:
        self._let_go(balancer, self.world.waiting[balancer].expire(self.clock.now_s))

    def _let_go(self, balancer: int, gone: list[Departure]) -> None:
        for left in gone:
            request = self._held.pop((balancer, left.place))
            request.place = -1
            self._place(request, left.outcome)

    def _place(self, request: LiveRequest, decision: Decision | RoutingError) -> None:
        index = request.index
        self.roles[index] = self.world.watch.role
        if isinstance(decision, RoutingError):
            status = Status.SHED if isinstance(decision, Shed) else Status.NO_WORKER
            request.ended = True
            self.record.ended(request, status, -1, self.clock.now_s, self.clock.now_s - request.arrival_s)
            self._answer(request, self.clock.now_s)
            return
        targets = (decision.worker, *decision.fallbacks)
        request.targets = tuple(self.world.index[name].index for name in targets)
        request.number = decision.number
        self.record.placed(request, self.world)
        self.world.workers[request.targets[0]].prompts += self._arriving.prompt(request)
        self.decided.append(request.targets[0])
        self.record.picked[index] = request.targets[0]
        self._peers.tell(request, ended=False)
        self._send(request)

    def _tenant(self, number: int) -> str:
        return self.fleet.tenants[number] if number < len(self.fleet.tenants) else str(number)

    def _send(self, request: LiveRequest) -> None:
        network = self.fleet.network
        u = self.world.u(Stream.WAY_JITTER, request.index << 3 | request.attempts)
        jitter_s = -network.jitter_s * math.log1p(-u)
        request.attempts += 1
        request.sent_s = self.clock.now_s
        own, other = self.fleet.zone_of(request.balancer), self.fleet.workers[request.worker].zone
        across_s = network.across_s.get(own, {}).get(other, 0.0)
        at_s = self.clock.now_s + network.to_worker_s + across_s + jitter_s
        subject = request.index if network.jitter_s or network.across_s else self._sent
        self.clock.at(at_s, Kind.REACH, (subject,), self._reach, request)
        self._sent += 1

    def _reach(self, request: LiveRequest) -> None:
        worker = self.world.workers[request.worker]
        if request.ended:
            return  # its client has given up
        if worker.state != "up" or not worker.is_loaded(self.fleet.models[request.model].name):
            self._fail(request)
        elif self.world.u(Stream.ERROR, request.index << 3 | request.attempts - 1) < worker.error_share:
            self._end(request, Status.ERROR)
        elif request.sequence >= 0 and not request.starts and request.sequence not in worker.sequences:
            self._end(request, Status.ERROR, void="client")
        elif worker.queues[request.model].full(request.level):
            self._fail(request)
        else:
            worker.queues[request.model].push(request, self.clock.now_s)
            if request.sequence >= 0:
                self._know(worker, request)
            self._look(worker, request.model)

    def _fail(self, request: LiveRequest) -> None:
        """Where nothing was executed."""
        if request.attempts < min(len(request.targets), 1 + self.fleet.retries):
            self._send(request)
        else:
            self._end(request, Status.UNAVAILABLE)

    def _know(self, worker: Worker, request: LiveRequest) -> None:
        """The worker has the sequence from now on; whoever had it before will not be asked again."""
        for other in self.world.workers:
            other.sequences.pop(request.sequence, None)
        worker.sequences[request.sequence] = request.model

    def _give_up(self, request: LiveRequest) -> None:
        """The client leaves, unless it has its answer."""
        if request.ended:
            return
        now_s = self.clock.now_s
        if request.place >= 0:
            self.world.waiting[request.balancer].withdraw(request.place)
            del self._held[request.balancer, request.place]
        else:
            worker = self.world.workers[request.worker]
            reached = not math.isnan(request.queued_s)
            if request.model in worker.queues:
                worker.queues[request.model].remove(request)
            name = worker.spec.name
            event = Finished(request.number, name, None, False, "client") if reached else Withdrawn(request.number)
            at_s = now_s + self.fleet.network.outcome_s
            self.clock.at(at_s, Kind.LEFT, (request.index,), self._observe, request, event)
            self._unheard += 1
        request.ended = True
        self.record.ended(request, Status.CANCELLED, -1, now_s, now_s - request.arrival_s)
        self._answer(request, now_s)

    # At a worker.

    def _look(self, worker: Worker, m: int) -> None:
        """Start what the batcher lets start."""
        if m in worker.batches:
            self._step(worker, m)
            return
        queue = worker.queues[m]
        while worker.free_instance(m) and len(queue):
            for request in queue.expire(self.clock.now_s):
                self._fail(request)
            if not len(queue):
                return
            batch, timer_s = queue.take(self.clock.now_s)
            if not batch:
                queue.timer_s = timer_s
                self.clock.at(timer_s, Kind.BATCH_TIMER, (worker.index, m), self._timer, worker, m, timer_s)
                return
            self._execute(worker, m, batch)

    def _step(self, worker: Worker, m: int) -> None:
        """Start the next step of a model that generates."""
        batch = worker.batches[m]
        if worker.state != "up" or batch.stepping or not (batch.running or len(worker.queues[m])):
            return
        tokens, attention_s = batch.begin(worker.queues[m], self.clock.now_s)
        if batch.running:
            batch.stepping = True
            noise = self._noise(worker.models[m].noise, worker.index << 40 | worker.started)
            left_s = (worker.tables[m][0][tokens] + attention_s) / worker.spec.speed * noise * worker.cold_factor()
            slot = worker.slots.index(None)
            worker.slots[slot] = execution = Execution(slot, worker.started, m, [], 0, self.clock.now_s, left_s)
            worker.started += 1
            self._ask_device(worker, execution)

    def _stepped(self, worker: Worker, execution: Execution) -> None:
        now_s, batch = self.clock.now_s, worker.batches[execution.model]
        for sequence, leaves in batch.end():
            request = sequence.request
            if request.generated == 1 and not request.ended:
                self.record.first_s[request.index] = now_s + self.fleet.network.to_client_s - request.arrival_s
                if request.output > 1:
                    heard_s = now_s + self.fleet.network.outcome_s
                    self.clock.at(heard_s, Kind.FIRST_TOKEN, (request.index,), self._begin, request)
            if leaves and not request.ended:
                self._end(request, Status.OK)
                worker.counters[execution.model].count(1, 1, now_s - sequence.admitted_s)

    def _timer(self, worker: Worker, m: int, timer_s: float) -> None:
        if worker.queues[m].timer_s == timer_s:
            self._look(worker, m)

    def _execute(self, worker: Worker, m: int, batch: list[LiveRequest]) -> None:
        rows = sum(request.rows for request in batch)
        work = 0.0
        for request in batch:
            work += request.rows * worker.effective_work(request)
        noise = self._noise(worker.models[m].noise, worker.index << 40 | worker.started)
        device_s, host_s = (table[rows] for table in worker.tables[m])
        left_s = device_s / worker.spec.speed * (work / rows) * noise * worker.cold_factor()
        slot = worker.slots.index(None)
        execution = Execution(slot, worker.started, m, batch, rows, self.clock.now_s, left_s)
        worker.slots[slot] = execution
        worker.started += 1
        if host_s > 0:
            at_s = self.clock.now_s + host_s
            self.clock.at(at_s, Kind.HOST_DONE, (worker.index, slot), self._ask_device, worker, execution)
        else:
            self._ask_device(worker, execution)

    def _noise(self, noise: Noise, k: int) -> float:
        if noise.kind == "none":
            return 1.0
        u1 = self.world.u(Stream.NOISE_1, k)
        if noise.kind == "exponential":
            return -math.log1p(-u1)
        v = math.log1p(noise.cv * noise.cv)
        z = math.sqrt(-2 * math.log1p(-u1)) * math.cos(2 * math.pi * self.world.u(Stream.NOISE_2, k))
        return math.exp(math.sqrt(v) * z - v / 2)

    def _ask_device(self, worker: Worker, execution: Execution) -> None:
        if not execution.lost:
            worker.device.ask(execution, self.clock.now_s)
            self._reschedule(worker)

    def _reschedule(self, worker: Worker) -> None:
        """The end of the next execution may have moved."""
        worker.device_version += 1
        end_s = worker.device.next_end_s
        if end_s < math.inf:
            self.clock.at(end_s, Kind.DEVICE_DONE, (worker.index,), self._device_done, worker, worker.device_version)

    def _device_done(self, worker: Worker, version: int) -> None:
        if version != worker.device_version:
            return
        execution = worker.device.end_next(self.clock.now_s)
        self._reschedule(worker)
        if execution.model in worker.batches:
            self._stepped(worker, execution)
        else:
            self._executed(worker, execution)
        worker.slots[execution.slot] = None
        self._note(worker, execution)
        self._look(worker, execution.model)

    def _executed(self, worker: Worker, execution: Execution) -> None:
        for request in execution.batch:
            if not request.ended:
                self._end(request, Status.OK)
                self._first(request, execution)
        seconds = self.clock.now_s - execution.started_s
        worker.counters[execution.model].count(execution.rows, len(execution.batch), seconds)

    def _note(self, worker: Worker, execution: Execution) -> None:
        e, ids = execution, tuple(request.index for request in execution.batch)
        self.executed.append(Executed(worker.index, e.number, e.model, e.started_s, self.clock.now_s, ids))

    # How it ends.

    def _first(self, request: LiveRequest, execution: Execution) -> None:
        """When the first response of a stream came."""
        if request.responses:
            took_s = self.clock.now_s - execution.began_s
            sent_s = execution.began_s + took_s * request.first_share
            self.record.first_s[request.index] = sent_s + self.fleet.network.to_client_s - request.arrival_s

    def _lose(self, request: LiveRequest) -> None:
        if not request.ended:
            self._end(request, Status.ERROR, answered=False)

    def _end(self, request: LiveRequest, status: Status, answered: bool = True, void: Void = "") -> None:
        request.ended = True
        now_s, network = self.clock.now_s, self.fleet.network
        served = status != Status.UNAVAILABLE
        answer_s = now_s + network.to_client_s
        self.record.ended(request, status, request.worker if served else -1, now_s, answer_s - request.arrival_s)
        latency_s = now_s - request.sent_s if served and answered and not request.responses else None
        name = self.fleet.workers[request.worker].name
        answer = (request.output, math.nan, request.cached) if self.fleet.models[request.model].generation else ()
        outcome = Finished(request.number, name, latency_s, status == Status.OK, void, *answer)
        self.clock.at(now_s + network.outcome_s, Kind.OUTCOME, (self._ended,), self._observe, request, outcome)
        self._ended += 1
        self._unheard += 1
        self._answer(request, answer_s)

    def _begin(self, request: LiveRequest) -> None:
        """A balancer hears of the first token of an answer."""
        self.world.routers[request.balancer].observe(FirstToken(request.number), self.clock.now_s)

    def _observe(self, request: LiveRequest, outcome: Finished | Withdrawn) -> None:
        self._unheard -= 1
        self._peers.tell(request, ended=True)
        self.world.routers[request.balancer].observe(outcome, self.clock.now_s)
        self._turn(request.balancer)

    def _answer(self, request: LiveRequest, answer_s: float) -> None:
        if self.arrivals.clients:
            self.clock.at(answer_s, Kind.ANSWER, (request.client,), self._send_next, request.client)

    def _send_next(self, client: int) -> None:
        if self._next < len(self.arrivals):
            self._next += 1
            self._arrive(self._next - 1, client)
