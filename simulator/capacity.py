"""How many requests a second a fleet can at most serve of a workload: what `load` is a share of.

Definition. Let p_m be the share of requests that go to model m, and x_wm the requests of it that worker w serves a
second, where w has m loaded. The capacity is the largest C with

    sum over w of x_wm        = C p_m     for each model: all of its requests are served;
    sum over m of x_wm d_wm  <= k_w       for each worker: no device is busier than all the time;
    x_wm h_wm                <= instances_m   for each worker and model: nor are its instances.

- d_wm is the device seconds that a mean request takes in the best batch: the least of `device_s(b) / b` over the batch
  sizes b from 1 to `max_batch_rows`, over the worker's speed, times the mean of rows times work.
- h_wm is the same with the host phase added, as an instance is occupied by both.
- Of a model that generates both are the least, over the sequences s that run at once, of a step's seconds over the
  requests that it completes: s / o of them, where o are the tokens that a mean request generates. The step has
  s (1 + p / o) tokens, with p those of its prompt, and the attention of so many. s is at most `max_sequences`, what
  memory holds, and what `step_tokens` let be. Nothing is found in caches: where something is, the fleet can do more.
- k_w is what sharing gains: the most of `j / (1 + interference (j - 1))` with j executions at once, j from 1 to
  `concurrency` and no more than the worker has instances; 1 with interference 1.

It is a linear program: the split over workers is the best one, not any policy's. Counted are the workers present at the
start; faults, cold starts, the autoscaler and hits of the cache are not. At finite load batches are not always the best
ones, nor can requests of many rows fill them exactly, so a real fleet saturates somewhat earlier: earlier the steeper
the table rises from small batches, and the less waits in each queue.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from simulator.spec import FleetSpec, GenerationSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.workload.workload import Demand, PromptDemand, Workload


def capacity_per_s(fleet: FleetSpec, workload: Workload) -> float:
    """The fleet's capacity for the workload's mix of requests, in requests per second.

    Raises:
        ValueError: no present worker has a model that gets requests, or a device kind has no service time.
    """
    from scipy.optimize import linprog  # noqa: PLC0415 - its import takes longer than all else of a scenario

    demands = workload.demand(fleet)
    # Equal workers are one kind of many: 256 of them make a small program.
    kinds = Counter(replace(worker, name="", weight=1.0) for worker in fleet.workers if worker.present)
    flows = [
        (kind, m)
        for kind in kinds
        for m, demand in enumerate(demands)
        if demand.share and kind.holds(fleet.models[m].name)
    ]
    served = {m for _, m in flows}
    for m, demand in enumerate(demands):
        if demand.share and m not in served:
            raise ValueError(f"model {fleet.models[m].name!r} gets requests, but no present worker has it: load it")
    costs = [seconds_of(fleet.models[m], kind, demands[m]) for kind, m in flows]
    # One column a flow, and the capacity itself.
    balance = np.array([[*(float(to == m) for _, to in flows), -demand.share] for m, demand in enumerate(demands)])
    busy = np.array(
        [[*(cost[0] * (of == kind) for cost, (of, _) in zip(costs, flows, strict=True)), 0.0] for kind in kinds]
    )
    most = [kinds[kind] * fleet.models[m].instances / cost[1] for cost, (kind, m) in zip(costs, flows, strict=True)]
    solved = linprog(
        np.array([*(0.0 for _ in flows), -1.0]),
        A_ub=busy,
        b_ub=[count * sharing_gain(kind, fleet) for kind, count in kinds.items()],
        A_eq=balance,
        b_eq=np.zeros(len(demands)),
        bounds=[*((0.0, high) for high in most), (0.0, None)],
    )
    return float(solved.x[-1])


def seconds_of(model: ModelSpec, worker: SimulatedWorker, demand: Demand) -> tuple[float, float]:
    """Seconds that a mean request occupies the device, and an instance, in the batch that is best for each."""
    service = model.service_on(worker.device)
    if service is None:
        raise ValueError(f"model {model.name!r} has no service time on {worker.device!r}: add it, or one for '*'")
    if model.generation is not None and demand.prompts is not None:
        seconds = _generating_s(model, service, model.generation, worker, demand.prompts)
        return seconds, seconds
    on_device, on_host = service.table(model.batching.max_batch_rows)
    sizes = np.arange(1, len(on_device))
    device_s = on_device[1:] / sizes / worker.speed * demand.row_work
    host_s = on_host[1:] / sizes * demand.rows
    return float(device_s.min()), float((device_s + host_s).min())


def _generating_s(
    model: ModelSpec, service: ServiceTime, generation: GenerationSpec, worker: SimulatedWorker, mean: PromptDemand
) -> float:
    device = generation.on(worker.device)
    assert device is not None  # check_fleet saw to it
    tokens_each = 1 + mean.tokens / mean.output
    held_each = mean.tokens + mean.output / 2
    most = min(generation.max_sequences, device.memory_tokens / held_each, generation.step_tokens / tokens_each)
    sequences = most * np.linspace(0.01, 1.0, 100)
    completed = sequences / mean.output
    linear_s, _ = service.table(model.table_sizes)
    step_s = np.interp(sequences * tokens_each, np.arange(len(linear_s)), linear_s)
    step_s += completed * (device.context_s * mean.context + device.attention_s * mean.pairs)
    return float((step_s / completed).min() / worker.speed)


def sharing_gain(worker: SimulatedWorker, fleet: FleetSpec) -> float:
    """What a device yields at most, in device seconds a second, by executing several at once."""
    instances = sum(model.instances for model in fleet.models if worker.holds(model.name))
    at_once = np.arange(1, max(min(worker.sharing.concurrency, instances), 1) + 1)
    return float((at_once / (1 + worker.sharing.interference * (at_once - 1))).max())
