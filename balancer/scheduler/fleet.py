"""Which workers exist, what each can serve, and the estimators' state of each; fed by events alone."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from balancer import bounds
from balancer.kernel import reports
from balancer.kernel.block import Block
from balancer.kernel.estimators import columns
from balancer.kernel.fleet_state import ESTIMATORS, FleetBlock
from balancer.kernel.python_kernel import Kernel, Lines
from balancer.kernel.settings import Settings
from balancer.kernel.state import settings_row
from balancer.scheduler.events import Finished, Report, WorkerAdded
from balancer.scheduler.peers import AtWorker, UntoldPrompts, peers_by_model
from balancer.scheduler.worker import Worker, kinds_of, objections, tier_of
from policies.base import BoolArray, FloatArray, Request, UintArray
from policies.hashing import key_of, kind_hash_of, model_hash_of

ANY_MODEL = "*"
"""Column 0: calls that concern a server and no model, and every model where no reports are required, so that names
that nobody checked cannot grow the state."""

FORGET_MODEL_S = 300.0
"""How long the numbers of a model are kept that no worker has any more: it may only be reloading."""
_FADE_PERIOD_S = 1.0


class Fleet:
    """Rows are workers, in order of arrival; columns are models, in order of first sight."""

    def __init__(self, settings: Settings, kernel: Kernel | None = None) -> None:
        self.settings = settings
        self.kernel = kernel or Kernel()
        self.workers: list[Worker] = []
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.models: dict[str, int] = {}
        self._blocks = FleetBlock(self.kernel.memory, self.kernel.stamp)
        self.queue, self.service = self._blocks.queue, self._blocks.service
        self.latency, self.tokens = self._blocks.latency, self._blocks.tokens
        self.caches, self.prefixes = self._blocks.caches, self._blocks.prefixes
        self.prefill, self.decode, self.lengths = self._blocks.prefill, self._blocks.decode, self._blocks.lengths
        self._find_arrays()
        self.changes = 0
        """Of who there is, with what weight and on what device: counted, for whoever writes them down."""
        self.revision = 0
        """Of what a model's masks and column rest on: counted, for whoever hands these to another process."""
        self._faded_s = -math.inf
        self.reports: Counter[str] = Counter()
        """Reports by what became of them: accepted, lost, late."""
        self.untold_prompts = UntoldPrompts()
        self.peers_heard = 0
        """How many other balancers tell this one of their picks."""
        self._free: list[int] = []
        """Columns without a model."""
        self._wanted_s: dict[str, float] = {}
        """When each model with a column was last reported by any worker."""
        # Models and versions that some worker has, so clients cannot add to them.
        self._known: set[tuple[str, str]] = set()
        self._servable: dict[tuple[str, str], BoolArray] = {}
        self._members: dict[tuple[str, str], BoolArray] = {}
        self._eligible: dict[tuple[str, str], BoolArray] = {}
        self._alike: dict[bytes, BoolArray] = {}
        """The eligible ones, each once: whoever keeps a copy has it for all models that the same workers have."""
        self._fresh_from_s, self._fresh_until_s = math.inf, -math.inf
        """Between these times it stays the same who is fresh, and what was made of it."""
        self.add_models([ANY_MODEL])

    def configure(self, settings: Settings) -> None:
        """Swap the settings; the estimators' state stays, and what is not measured yet follows the new priors."""
        self.settings = settings
        self._forget_masks()
        self.decision.settings[0] = settings_row(settings)
        self.decision.tier[:] = [tier_of(worker.zone, settings.zones) for worker in self.workers]
        self._take_profiles(range(len(self.workers)), self.models)

    @property
    def block(self) -> Block:
        """What all arrays lie in; another one once there is no room for more workers or models."""
        return self._blocks.block

    def renew_block(self) -> None:
        """Go on in another block, since somebody else may write to this one out of turn."""
        self._blocks.resize(self._blocks.sizes, anew=True)
        self._find_arrays()

    def _find_arrays(self) -> None:
        """Take the block's arrays, which were laid out anew. Kernels see that by the scratch, which is new."""
        self.decision = self._blocks.decision
        self.decision.settings[0] = settings_row(self.settings)
        self.reported_s: FloatArray = self.decision.reported_s
        """When each worker's last report was received; minus infinity: none, or its stream broke."""
        self.weight: FloatArray = self.decision.weight[0]
        self.name_hash: UintArray = self.decision.name_hash[0]

    def add_models(self, models: Collection[str]) -> None:
        """Give each of the models, which have none yet, a column, as far as there may be more."""
        new = list(models)[: bounds.MAX_FLEET_MODELS - len(self.models)]
        if len(new) < len(models):
            self.reports["models_left_out"] += len(models) - len(new)
        made = max(len(new) - len(self._free), 0)
        if made:
            size = self.service.fixed_s.shape[1]
            self._blocks.add(models=made)
            self._find_arrays()
            self._free.extend(range(size + made - 1, size - 1, -1))
        for model in new:
            self.models[model] = self._free.pop()
            self.decision.model_hash[0, self.models[model]] = model_hash_of(model)
        if new:
            self.revision += 1
            self._take_profiles(range(len(self.workers)), new)

    def _forget_models(self, now_s: float) -> None:
        """Give up the columns of models that no worker has had for a while, and nothing is in flight for.

        What the last report of a silent worker listed, it has.
        """
        due = [
            model
            for model, wanted_s in self._wanted_s.items()
            if now_s - wanted_s > FORGET_MODEL_S and (model, "") not in self._known
        ]
        for model in due:
            column = self.models[model]
            if self.queue.known_rows[:, column].any():
                continue
            del self.models[model], self._wanted_s[model]
            for name in ESTIMATORS:
                columns.clear_model(getattr(self, name), column)
            for worker in self.workers:
                worker.batches = {key: value for key, value in worker.batches.items() if key[0] != model}
            self._free.append(column)
            self.revision += 1

    def add(self, events: Sequence[WorkerAdded]) -> None:
        """Workers appear, or discovery's word about known ones changes; the state of those stays then."""
        known = len(self.workers)
        new = {event.worker: event.device for event in events if event.worker not in self.index}
        if new:
            self._blocks.add(workers=len(new))
            self._find_arrays()
            for row, (name, device) in enumerate(new.items(), known):
                self.index[name] = row
                self.workers.append(Worker(name, device=device))
                self.names.append(name)
                self.name_hash[row] = key_of(name)
            self._take_kinds()
            self._take_profiles(range(known, len(self.workers)), self.models)
        for event in events:
            row = self.index[event.worker]
            worker = self.workers[row]
            worker.weight = self.weight[row] = event.weight
            worker.draining, worker.zone = event.draining, event.zone
            self.decision.tier[row] = tier_of(event.zone, self.settings.zones)
            self._take_device(row, event.device)
            worker.memory_bytes = event.memory_bytes or worker.memory_bytes
            self.changes += 1
        self._forget_masks()

    def remove(self, name: str) -> None:
        """Forget a worker; unknown names are ignored, since discovery may repeat itself."""
        row = self.index.get(name)
        if row is None:
            return
        del self.workers[row], self.names[row]
        self.untold_prompts.take(name)
        self.index = {name: i for i, name in enumerate(self.names)}
        self._blocks.remove_worker(row)
        self._find_arrays()
        self._take_kinds()
        self.changes += 1
        self._forget_masks()

    def lose(self, name: str) -> None:
        """The worker's reports broke off: treat what is known of it as stale from now on."""
        row = self.index.get(name)
        if row is not None:
            self.reported_s[row] = -np.inf
            self._fresh_until_s = -math.inf

    def _forget_masks(self) -> None:
        self.revision += 1
        self._servable.clear()
        self._members.clear()
        self._known = {
            (model, version)
            for worker in self.workers
            for model, versions in worker.versions.items()
            for version in ("", *versions)
        }
        self._fresh_until_s = -math.inf

    def report(self, event: Report, now_s: float) -> bool:
        """Take over a report; False for one that is late, repeated, or of an unknown worker."""
        row = self.index.get(event.worker)
        if row is None:
            self.reports["unknown_worker"] += 1
            return False
        worker = self.workers[row]
        number = event.stream, event.incarnation, event.number
        order = reports.order_of(number, (worker.stream, worker.incarnation, worker.number))
        if order == reports.LATE:
            self.reports["late"] += 1
            return False
        if order == reports.BEGINS:
            worker.batches.clear()
        elif event.stream == worker.stream:
            self.reports["lost"] += event.number - worker.number - 1
        self.reports["accepted"] += 1
        worker.stream, worker.incarnation, worker.number = number
        self._take_identity(row, worker, event)
        lines, batches = self._lines(worker, event, now_s)
        begins, unheard = order == reports.BEGINS, max(event.balancers - self.peers_heard, 1)
        untold = event.peers_in_flight is None
        if not untold or not self.peers_heard:
            self.prefixes.peer_waiting_tokens[row] = math.nan if untold else event.peers_waiting_tokens
        if self.kernel.take_report(self, row, begins, lines, batches, unheard, now_s):
            self._fresh_until_s = -math.inf
        for prompt in event.peers_prompts:
            column = self.models.get(prompt.model)
            if column is not None:
                self.kernel.count_peer_prompt(self, row, column, prompt.tokens, prompt.prefix, now_s)
        return True

    def _take_device(self, row: int, device: str) -> None:
        """A worker's device kind, where `device` tells it; its profiles are the priors from now on."""
        worker = self.workers[row]
        if device and device != worker.device:
            before = self._profiles_of(worker)
            worker.device = device
            self.changes += 1
            self._take_kinds()
            if self._profiles_of(worker) != before:
                self._take_profiles((row,), self.models)

    def _profiles_of(self, worker: Worker) -> list[tuple[float, float] | None]:
        """What was measured beforehand of the worker's device, by model."""
        profiles = self.settings.estimators.profiles
        return [profiles.get((worker.device, model)) for model in self.models]

    def _take_kinds(self) -> None:
        """Number the kinds of devices that there are: workers of one kind learn from each other, at the next tick."""
        self.decision.kind[:] = kinds_of(worker.device for worker in self.workers)
        self.decision.kind_hash[0] = [kind_hash_of(worker.device) for worker in self.workers]

    def _take_profiles(self, rows: Iterable[int], models: Iterable[str]) -> None:
        """Look up what was measured beforehand of these workers' devices with these models, and fit all anew."""
        profiles = self.settings.estimators.profiles
        for row in rows:
            for model in models:
                at = row, self.models[model]
                profile = profiles.get((self.workers[row].device, model), (np.nan, np.nan))
                self.service.profile_fixed_s[at], self.service.profile_per_row_s[at] = profile
        self.kernel.fade(self, 0.0)

    def _take_identity(self, row: int, worker: Worker, event: Report) -> None:
        ready: dict[str, list[str]] = {}
        for model in event.models:
            if model.ready:
                ready.setdefault(model.model, []).append(model.version)
        versions = {model: frozenset(names) for model, names in ready.items()}
        device = event.device or worker.device
        memory_bytes = event.memory_bytes or worker.memory_bytes
        was = worker.ready, worker.stopping, worker.versions, worker.device, worker.memory_bytes
        if (event.ready, event.draining, versions, device, memory_bytes) != was:
            worker.ready, worker.stopping = event.ready, event.draining
            worker.versions, worker.memory_bytes = versions, memory_bytes
            self._take_device(row, device)
            self._forget_masks()
        worker.utilisation, worker.memory_used_bytes = event.utilisation, event.memory_used_bytes

    def _lines(self, worker: Worker, event: Report, now_s: float) -> tuple[Lines, Lines]:
        """What the report says of queues, and of what was executed since the last one, in the kernel's columns."""
        new = {model.model for model in event.models} - self.models.keys()
        if new:
            self.add_models(sorted(new))
        lines, batches = list[tuple[float, ...]](), list[tuple[float, ...]]()
        for model, peers in zip(event.models, peers_by_model(event), strict=True):
            column = self.models.get(model.model)
            if column is None:
                continue
            self._wanted_s[model.model] = now_s
            batches += ((len(lines), *each) for each in worker.executed(model))
            executions = sum(executions for _, executions, _ in model.batches)
            executed_rows = sum(rows * executions for rows, executions, _ in model.batches)
            most, instances = max(model.max_batch_rows, 1), max(model.instances, 1)
            counts = (model.pending, model.executing, executions, executed_rows, model.succeeded, peers)
            lines.append((column, most, instances, *counts, model.memory_tokens, model.held_tokens))
        return lines, batches

    def at_worker(self, worker: str) -> AtWorker:
        if worker not in self.index:
            return AtWorker()
        row = self.index[worker]
        requests = self.own_requests(row).tolist()
        in_flight = {model: int(requests[column]) for model, column in self.models.items() if requests[column]}
        return AtWorker(in_flight, float(self.prefixes.waiting_tokens[row]))

    def own_requests(self, row: int) -> FloatArray:
        """Own requests in flight at a worker, by model, `(m,)`."""
        return np.asarray(self.queue.sent_requests[row] - self.queue.done_requests[row])

    def sent(self, worker: str, column: int, rows: float, now_s: float) -> None:
        self.kernel.take(self, self.index[worker], column, Request("", rows=rows), now_s)

    def ended(self, worker: str, column: int, rows: float, now_s: float) -> None:
        row = self.index.get(worker)
        if row is not None:
            self.kernel.count_out(self, row, column, rows, now_s)

    def finished(self, worker: str, column: int, rows: float, key: int | None, outcome: Finished, now_s: float) -> None:
        row, by = self.index[worker], self.index.get(outcome.worker, -1)
        seconds = math.nan if outcome.latency_s is None else outcome.latency_s
        self.kernel.finish(self, row, column, rows, key, by, seconds, outcome.ok, now_s)

    def outcome(self, served: str, latency_s: float | None, ok: bool, now_s: float) -> None:
        """Learn from the outcome of a request that is not known; nor need the worker be."""
        row = self.index.get(served, -1)
        self.kernel.finish(self, -1, 0, 0.0, None, row, math.nan if latency_s is None else latency_s, ok, now_s)

    def tick(self, now_s: float) -> None:
        """Let what was learned of service times fade; about once a second, however often it is called."""
        elapsed_s = now_s - self._faded_s
        if elapsed_s < _FADE_PERIOD_S:
            return
        self._faded_s = now_s
        self._forget_models(now_s)
        share = min(elapsed_s, 10 * _FADE_PERIOD_S) / self.settings.estimators.service_memory_s
        self.kernel.fade(self, -math.expm1(-share))

    def column(self, model: str) -> int:
        """Of the estimators' state for a model; for one that has none of its own, that of `ANY_MODEL`."""
        return self.models.get(model, self.models[ANY_MODEL])

    def knows(self, model: str) -> bool:
        return model in self.models or model in self.settings.models or not self.settings.reports_required

    def servable(self, model: str, version: str) -> BoolArray:
        """Workers that may serve the model by what changes rarely, `(n,)`; cached until an event changes it."""
        return self._mask(self._servable, model, version, drain=False)

    def members(self, model: str, version: str) -> BoolArray:
        """Workers that a sequence may belong to, `(n,)`: those that drain and those that report late too, since its
        worker must not change for that."""
        return self._mask(self._members, model, version, drain=True)

    def _mask(self, kept: dict[tuple[str, str], BoolArray], model: str, version: str, *, drain: bool) -> BoolArray:
        mask = kept.get((model, version))
        if mask is None:
            # The worker of a sequence must not change because it fails; and where all fail, any may be tried.
            mask = self._unobjected(model, version, drain=drain, failing=drain)
            if not mask.any() and any(worker.failing for worker in self.workers):
                mask = self._unobjected(model, version, drain=drain, failing=True)
            if self._may_keep(model, version):
                kept[model, version] = mask
        return mask

    def _unobjected(self, model: str, version: str, *, drain: bool, failing: bool) -> BoolArray:
        found = (objections(each, self.settings, model, version, drain=drain, failing=failing) for each in self.workers)
        return np.array([next(reasons, None) is None for reasons in found], bool)

    def leave_out(self, failing: Collection[tuple[str, str]]) -> None:
        """These workers, each with a model, get none of its requests while others may."""
        of = {worker: frozenset(model for model, name in failing if name == worker) for _, worker in failing}
        for worker in self.workers:
            worker.failing = of.get(worker.name, frozenset())
        self._forget_masks()

    def listed(self) -> Collection[tuple[str, str]]:
        """Models and versions that masks are kept of, and the models that are known beside them."""
        return self._known | {(model, "") for model in {*self.models, *self.settings.models} - {ANY_MODEL}} | {("", "")}

    def _may_keep(self, model: str, version: str) -> bool:
        """Whether masks of the model and version are kept: clients may name anything."""
        return not model or (model, version) in self._known

    def eligible(self, model: str, version: str, now_s: float) -> BoolArray:
        """Servable workers, stale ones only where no fresh one is left, `(n,)`; cached while no event and no time that
        passed changes it."""
        if not self.settings.reports_required:
            return self.servable(model, version)
        if not self._fresh_from_s <= now_s <= self._fresh_until_s:
            self._fresh_from_s, self._fresh_until_s = now_s, self.kernel.fresh_until_s(self, now_s)
            self._eligible.clear()
            self._alike.clear()
        mask = self._eligible.get((model, version))
        if mask is None:
            mask = self.kernel.keep_fresh(self, self.servable(model, version), now_s)
            mask = self._alike.setdefault(mask.tobytes(), mask)
            if self._may_keep(model, version):
                self._eligible[model, version] = mask
        return mask

    def objections(self, worker: Worker, model: str, version: str) -> Iterator[str]:
        return objections(worker, self.settings, model, version)
