"""Attacks by whoever may send reports, on a real balancer process with its agents' port open."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from support.balancer_alone import WORKER, BalancerAlone
from support.reports import calling, report_of
from support.running import running
from support.waiting import eventually

from balancer.reports import report_pb2
from balancer.reports.codec import ReportEncoder
from balancer.reports.sending import METHOD
from balancer.stack.stack import read_samples

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Call = grpc.aio.StreamStreamCall[report_pb2.WorkerReport, report_pb2.ReportAck]
MEBIBYTE = 2**20
NAME = WORKER["name"]


class Balancer(BalancerAlone):
    """And streams of reports on its worker."""

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[Call]:
        """A report stream on a connection of its own."""
        asked = {"method": METHOD, "message": report_pb2.WorkerReport, "answer": report_pb2.ReportAck}
        async with calling(self.reports, **asked) as call:
            yield call

    async def refuses(self, message: report_pb2.WorkerReport) -> str:
        """Why it ends the stream that carries this message first; fails where it does not."""
        async with self.stream() as call:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(message)
            async with asyncio.timeout(20):
                assert await call.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
            return await call.details() or ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def balancer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Balancer]:
    """One for all attacks: each is to leave it as it was."""
    balancer = Balancer(tmp_path_factory.mktemp("attacked"), reports_required=True)
    async with running(balancer):
        yield balancer


@contextlib.asynccontextmanager
async def honest_agent(balancer: Balancer) -> AsyncIterator[None]:
    """Reports 50 times a second, and comes back when its stream is ended, as an agent does."""

    async def report() -> None:
        while True:
            encoder, number = ReportEncoder(), 0
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with balancer.stream() as call:
                    while not call.done():
                        await call.write(encoder.encode(report_of(NAME, number)))
                        number += 1
                        await asyncio.sleep(0.02)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def message(**fields: Any) -> report_pb2.WorkerReport:
    defaults: dict[str, Any] = {"worker": NAME, "incarnation": 1, "all_models": True, "ready": True}
    return report_pb2.WorkerReport(**(defaults | fields))


def model(**fields: Any) -> report_pb2.ModelReport:
    defaults: dict[str, Any] = {"model": "m", "version": "1", "ready": True}
    return report_pb2.ModelReport(**(defaults | fields))


@pytest.mark.parametrize(
    "bloated",
    [
        pytest.param(message(models=[model(model=f"m{i}") for i in range(12_000)]), id="models"),
        pytest.param(message(models=[model(version=f"{i}") for i in range(1000)]), id="versions"),
        pytest.param(message(models=[model(model="m" * 500_000)]), id="name"),
        pytest.param(message(device="d" * 500_000), id="device"),
        pytest.param(message(worker="w" * 500_000), id="worker"),
        pytest.param(
            message(models=[model(batches=[report_pb2.BatchStatistics(rows=i + 1) for i in range(20_000)])]), id="sizes"
        ),
        pytest.param(message(device="d" * 3 * MEBIBYTE), id="message"),
    ],
)
async def test_a_stranger_cannot_bloat_the_balancer(balancer: Balancer, bloated: report_pb2.WorkerReport) -> None:
    async with honest_agent(balancer):
        for _ in range(10):  # So that buffers have their size.
            await balancer.refuses(bloated)
        before = balancer.resident_bytes()
        for _ in range(20):
            await balancer.refuses(bloated)
        assert balancer.resident_bytes() < before + 16 * MEBIBYTE
        await eventually(
            balancer.worker, "the honest agent speaks for the worker", 10.0, until=lambda worker: worker["ready"]
        )


async def test_a_stranger_cannot_fill_logs_and_metrics_with_made_up_names(balancer: Balancer) -> None:
    series, logged = len(await read_samples(balancer.url)), balancer.log_path.stat().st_size
    for i in range(300):
        await balancer.refuses(message(worker=f"other{i}", models=[model(model=f"m{i}", pending=-1)]))
    assert len(await read_samples(balancer.url)) <= series + 2
    assert balancer.log_path.stat().st_size < logged + 50_000
