"""What a report costs the balancer, and how many a second one process takes in.

Reports are those of a busy worker with three models: every report changes all of them, one in 12 the batch statistics
too (50 reports and 4 statistics a second). They arrive over real gRPC streams from another process, each stream as
fast as it is read: `python -m dev.bench.reports ADDRESS[,...] WORKERS PAUSE_S` sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import grpc
import psutil
import uvloop

from balancer.kernel.compiled.library import Compiled, Library
from balancer.reports import report_pb2
from balancer.reports.codec import ReportDecoder, ReportEncoder
from balancer.reports.collector import Collector
from balancer.reports.intake import Intake
from balancer.reports.sending import METHOD
from balancer.scheduler.events import Event, ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from dev.bench.results import Options, Table, best_us
from policies.expected_latency import ExpectedLatency

MODELS = 3
WORKERS = 64
_DURATION_S = 4.0
_LABELS = {
    "report_bytes": "size of a report, bytes",
    "encode_us": "agent: write a report, µs",
    "decode_us": "balancer: read a report, µs",
    "decode_and_observe_us": "balancer: read it and take it into the estimators, µs",
    "receive_us": "balancer: the same over gRPC, without the estimators, µs",
    "receive_with_observe_us": "balancer: all of it, µs",
    "sustained_per_s": "received a second by one process, without the estimators",
    "sustained_with_observe_per_s": "received a second by one process",
    "possible_with_observe_per_core_and_s": "possible a second and core",
    "memory_with_observe_mib": f"memory grown by {WORKERS} streams, MiB",
}
_STATISTICS_EVERY = 12
_CYCLE = 5000
_REPEATS = 3
_WARM_UP_S = 0.5
_AGAIN_S = 0.5


def busy_reports(worker: str) -> Iterator[Report]:
    for number in itertools.count():
        executions = 40 * (number // _STATISTICS_EVERY)
        yield Report(
            worker=worker,
            incarnation=1,
            number=number,
            ready=True,
            models=tuple(
                ModelReport(
                    model=f"model_{index}",
                    version="1",
                    ready=True,
                    pending=float((number * 7 + index) % 40),
                    executing=(number % 16) / 2,
                    succeeded=number * 11,
                    failed=number // 100,
                    max_batch_rows=8,
                    instances=2,
                    batches=tuple(
                        (rows, executions, executions * (0.004 + 0.001 * rows)) for rows in range(1, 9) if executions
                    ),
                )
                for index in range(MODELS)
            ),
            device="T4",
            memory_bytes=16 << 30,
            memory_used_bytes=8 << 30,
            utilisation=0.5,
        )


def _router() -> Router:
    router = Router(ExpectedLatency(), kernel=Compiled(Library()))
    for index in range(WORKERS):
        router.observe(WorkerAdded(f"worker-{index}"), 0.0)
    return router


def measure(options: Options) -> list[Table]:
    """Cost and rate at a fleet of 64; CPU time throughout."""
    figures = _figures(options.seconds(_DURATION_S))
    rows = [[label, f"{figures[name]:,.1f}"] for name, label in _LABELS.items()]
    title = f"Reports of {MODELS} busy models each, from {WORKERS} workers over {WORKERS} streams (CPU time)"
    return [Table(title, ["", "value"], rows)]


def _figures(duration_s: float) -> dict[str, float]:
    """Cost and rate of reports, keyed by names that end in their unit; the streams run for `duration_s`, twice."""
    reports = list(itertools.islice(busy_reports("worker-0"), _CYCLE))
    encoder = ReportEncoder()
    messages = [encoder.encode(report).SerializeToString() for report in reports]
    result = {
        "report_bytes": sum(map(len, messages)) / len(messages),
        "encode_us": best_us(lambda: _encode(reports), _REPEATS) / _CYCLE,
        "decode_us": best_us(lambda: _decode(messages), _REPEATS) / _CYCLE,
        "decode_and_observe_us": best_us(lambda: _decode_and_observe(messages, _router()), _REPEATS) / _CYCLE,
    }
    for suffix, observe in (("", False), ("_with_observe", True)):
        rate_per_s, cpu_us, grown_mib = uvloop.run(_receive(duration_s, observe=observe))
        result[f"sustained{suffix}_per_s"] = rate_per_s
        result[f"receive{suffix}_us"] = cpu_us
        result[f"possible{suffix}_per_core_and_s"] = 1e6 / cpu_us
        result[f"memory{suffix}_mib"] = grown_mib
    return result


def _encode(reports: list[Report]) -> None:
    encoder = ReportEncoder()
    for report in reports:
        encoder.encode(report).SerializeToString()


def _decode(messages: list[bytes]) -> None:
    decoder = ReportDecoder()
    for message in messages:
        decoder.decode(report_pb2.WorkerReport.FromString(message))


def _decode_and_observe(messages: list[bytes], router: Router) -> None:
    decoder = ReportDecoder()
    for number, message in enumerate(messages):
        router.observe(decoder.decode(report_pb2.WorkerReport.FromString(message)), number * 0.02)


async def _receive(duration_s: float, *, observe: bool) -> tuple[float, float, float]:
    """Reports a second, CPU microseconds of this process a report, and MiB that it grew by, under full streams."""
    router = _router()
    clock = asyncio.get_running_loop().time

    def on_event(event: Event) -> None:
        if observe:
            router.observe(event, clock())

    collector = Collector(Intake(on_event), silence_s=60.0)
    server = grpc.aio.server()
    collector.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    memory_before = _memory_mib()
    sender = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dev.bench.reports", f"127.0.0.1:{port}", str(WORKERS), "0")
    )
    try:
        # Measured from when all streams run, which making their reports takes a while.
        while collector.counts.streams < WORKERS and sender.returncode is None:
            await asyncio.sleep(0.05)
        await asyncio.sleep(_WARM_UP_S)
        before, start_s, cpu_s = collector.counts.reports, clock(), time.process_time()
        await asyncio.sleep(duration_s)
        received = collector.counts.reports - before
        elapsed_s, cpu_s = clock() - start_s, time.process_time() - cpu_s
        if sender.returncode is not None or not received:
            raise RuntimeError(f"the sender ended with {sender.returncode} after {received} reports")
    finally:
        if sender.returncode is None:
            sender.kill()
        await sender.wait()
        await server.stop(None)
    return received / elapsed_s, cpu_s / received * 1e6, _memory_mib() - memory_before


def _memory_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


async def _send(addresses: Sequence[str], workers: int, pause_s: float) -> None:
    """Send reports on a connection for each worker until killed, with pauses or as fast as the balancer reads; as many
    workers to each address."""
    async with asyncio.TaskGroup() as group:
        for index in range(workers):
            address = addresses[index * len(addresses) // workers]
            group.create_task(_send_one(address, f"worker-{index}", pause_s))


async def _send_one(address: str, worker: str, pause_s: float) -> None:
    """As an agent does: again on a new stream where one is ended, as for silence on a busy machine."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        method: grpc.aio.StreamStreamMultiCallable[report_pb2.WorkerReport, bytes] = channel.stream_stream(
            METHOD, request_serializer=report_pb2.WorkerReport.SerializeToString
        )
        while True:
            call, encoder = method(), ReportEncoder()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for report in busy_reports(worker):
                    # The same clock for all processes: whoever takes it in knows its age.
                    now_us = time.monotonic_ns() // 1000
                    await call.write(encoder.encode(replace(report, memory_used_bytes=now_us)))
                    if pause_s:
                        await asyncio.sleep(pause_s * random.uniform(0.9, 1.1))
            await asyncio.sleep(_AGAIN_S)


if __name__ == "__main__":
    uvloop.run(_send(sys.argv[1].split(","), int(sys.argv[2]), float(sys.argv[3])))
