"""A setup's online measurements as the simulator has them, from its offline table.

Five decisions turn one client's table into a server under load; they are the same for all setups, or by runtime.

1. **Device seconds** are inference and output. Copying the inputs is a host phase that overlaps with other instances,
   except in TensorRT and ONNX Runtime, which put it on the stream of the execution.
2. **TensorRT rounds batches up** to a power of two: offline, WideAndDeep takes the same time from 81,920 to 131,072
   rows, and from 49,152 to 65,536, on all four GPUs. The other tables have no sizes in between.
3. **Instances share the device** evenly (`interference` 1), so that two at once take twice as long; two ONNX Runtime
   sessions of GPUNet's small kernels lose more than that (`onnx_interference`).
4. **The client**: offline the tensors went through shared memory, online through HTTP or gRPC. A request takes its
   bytes over `transfer_bytes_per_s`. The clients whose batch has ended all send at once, one after the other: of `c`
   clients with `i` instances, about `c / (i + 1)` (those executing, and those that wait), of which a request waits for
   half. Of that, `jitter_share` is random.
5. **Noise** is lognormal with the spread of the offline latencies.

Triton 21.12 forms two batches ahead for each instance (see `setups`): instances that hold a formed batch while it waits
for the device are the same thing, so such a worker has three times as many, and the device takes as many as there are.

The three constants were chosen on the V100 and the A30; A100, T4 and A40 had no part in them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dev.experiments.gpu_fidelity.setups import Setup
from policies.base import FloatArray
from policies.round_robin import RoundRobin
from simulator.arrivals import Arrivals
from simulator.run import run
from simulator.spec import (
    BatchingSpec,
    DeviceSpec,
    FleetSpec,
    ModelSpec,
    NetworkSpec,
    Noise,
    ServiceTime,
    SimulatedWorker,
)

CHOSEN_ON = ("V100", "A30")

# What the module's text decides.
_TRANSFER_BYTES_PER_S, _JITTER_SHARE, _ONNX_INTERFERENCE = 1.6e9, 0.3, 1.3
_BATCHES_AHEAD = 2
_ROUNDS_UP = ("TensorRT",)
"""Runtimes that execute the next power of two."""
_COPIES_ON_STREAM = ("TensorRT", "ONNX Runtime")
"""Runtimes whose copies of inputs do not overlap with another instance's execution."""
_WINDOWS, _WINDOW_S, _WINDOW_REQUESTS = 3, 1.0, 500
_LEAST_REQUESTS, _MOST_REQUESTS = 4_000, 40_000
_WARM_UP_ROUNDS = 5


def predict(setup: Setup, concurrencies: tuple[int, ...]) -> FloatArray:
    """What the client would measure; `(concurrencies, metrics)` in the order and units of `METRICS`."""
    arrivals = [_closed_loop(clients, _requests(setup)) for clients in concurrencies]
    fleets = [fleet(setup, clients) for clients in concurrencies]
    result = run(fleets, arrivals, RoundRobin(), seeds=concurrencies)
    each = zip(result.arrival_s, result.latency_s, concurrencies, strict=True)
    return np.array([_as_perf_analyzer(arrival_s, latency_s, clients) for arrival_s, latency_s, clients in each])


def fleet(setup: Setup, clients: int) -> FleetSpec:
    """One server; a row of the simulation is one request of the client."""
    deployed, offline = setup.deployment, setup.table
    largest = deployed.max_batch_rows // setup.request_rows
    batching = BatchingSpec(
        max_batch_rows=largest,
        queue_delay_s=deployed.queue_delay_s,
        preferred_rows=tuple(rows // setup.request_rows for rows in deployed.preferred_rows),
    )
    ahead = 1 + _BATCHES_AHEAD if deployed.early_batches else 1
    model = ModelSpec(
        name=offline.model,
        service={"*": _service(setup, largest)},
        noise=Noise("lognormal", setup.noise_cv),
        batching=batching,
        instances=deployed.instances * ahead,
    )
    interference = _ONNX_INTERFERENCE if setup.runtime == "ONNX Runtime" else 1.0
    worker = SimulatedWorker("server", sharing=DeviceSpec(deployed.instances, interference))
    return FleetSpec(models=(model,), workers=(worker,), network=_network(setup, clients))


def _service(setup: Setup, largest: int) -> ServiceTime:
    offline = setup.table
    requests = np.arange(1, largest + 1)
    rows = requests * setup.request_rows

    def at(seconds: tuple[float, ...], sizes: npt.NDArray[np.int64]) -> FloatArray:
        return np.interp(sizes, offline.rows, seconds)

    if not offline.parts_s["compute_infer"]:
        return ServiceTime(tuple(requests.tolist()), tuple(at(offline.mean_s, rows).tolist()))
    padded = 2 ** np.ceil(np.log2(rows)).astype(np.int64) if setup.runtime in _ROUNDS_UP else rows
    device_s = at(offline.parts_s["compute_infer"], padded) + at(offline.parts_s["compute_output"], padded)
    host_s = at(offline.parts_s["compute_input"], rows)
    if setup.runtime in _COPIES_ON_STREAM:
        return ServiceTime(tuple(requests.tolist()), tuple((device_s + host_s).tolist()))
    return ServiceTime(tuple(requests.tolist()), tuple(device_s.tolist()), tuple(host_s.tolist()))


def _network(setup: Setup, clients: int) -> NetworkSpec:
    offline = setup.table
    parts = (offline.parts_s[name] for name in ("client_send", "network", "server_queue", "client_recv"))
    fixed_s = sum(float(np.interp(setup.request_rows, offline.rows, part)) for part in parts if part)
    transfer_s = setup.request_rows * setup.deployment.bytes_per_row / _TRANSFER_BYTES_PER_S
    turn_s = transfer_s * clients / (setup.deployment.instances + 1) / 2
    return NetworkSpec(
        to_worker_s=fixed_s / 2 + transfer_s + (1 - _JITTER_SHARE) * turn_s,
        to_client_s=fixed_s / 2,
        jitter_s=_JITTER_SHARE * turn_s,
    )


def _requests(setup: Setup) -> int:
    """Enough for the windows of the measurement, and a warm-up, at one and a half times the best rate offline."""
    best_per_s = max(rows / mean_s for rows, mean_s in zip(setup.table.rows, setup.table.mean_s, strict=True))
    wanted = 1.5 * best_per_s / setup.request_rows * (_WINDOWS + 0.5) * _WINDOW_S
    return int(np.clip(wanted, _LEAST_REQUESTS, _MOST_REQUESTS))


def _closed_loop(clients: int, requests: int) -> Arrivals:
    zeros = np.zeros(requests, np.int16)
    return Arrivals(
        time_s=np.zeros(requests),
        model=zeros,
        rows=np.ones(requests, np.int32),
        work=np.ones(requests),
        key=np.zeros(requests, np.uint64),
        deadline_s=np.full(requests, math.inf),
        priority=zeros,
        balancer=zeros,
        tenant=zeros,
        clients=clients,
    )


def _as_perf_analyzer(arrival_s: FloatArray, latency_s: FloatArray, clients: int) -> tuple[float, ...]:
    """Three windows, each of whole seconds until 500 requests ended in it.

    What ended in a window is divided by the time from the earliest start among it to the last end. So it counts too
    few, by about the latency over the window: in the table, throughput times latency is down to 0.8 of the concurrency.
    Polling for 500 requests once a second is in the tool's source; the window's ends, in the releases that measured,
    are inferred from that shortfall (older sources begin at the first request's start, later ones at the window's).
    """
    end_s = arrival_s + latency_s
    start_s = np.sort(end_s)[min(_WARM_UP_ROUNDS * clients, len(end_s) // 3)]
    rates: list[float] = []
    latencies: list[FloatArray] = []
    for _ in range(_WINDOWS):
        length_s = _WINDOW_S
        while start_s + length_s < arrival_s[-1] and _ended(end_s, start_s, length_s).sum() < _WINDOW_REQUESTS:
            length_s += _WINDOW_S
        if start_s + length_s > arrival_s[-1] and latencies:
            break
        inside = _ended(end_s, start_s, min(length_s, arrival_s[-1] - start_s))
        rates.append(float(inside.sum() / (end_s[inside].max() - arrival_s[inside].min())))
        latencies.append(latency_s[inside])
        start_s += length_s
    all_ms = np.concatenate(latencies) * 1e3
    return (float(np.mean(rates)), float(all_ms.mean()), *np.percentile(all_ms, (50, 95, 99)).tolist())


def _ended(end_s: FloatArray, start_s: float, length_s: float) -> npt.NDArray[np.bool_]:
    return (end_s > start_s) & (end_s <= start_s + length_s)
