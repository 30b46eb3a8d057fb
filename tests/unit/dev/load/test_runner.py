import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator

import numpy as np
import pytest
from support.fake_triton import FakeTriton, serving

from balancer.load.arrivals import uniform
from balancer.load.result import summarise
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.sender import CallResult, LoadError
from balancer.load.workload import LoadWorkload, ModelMix, RowSizes, mixed, streams
from balancer.stack.process import free_ports


@pytest.fixture
async def fake() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
async def url(fake: FakeTriton) -> AsyncIterator[str]:
    async with serving(fake) as address:
        yield address


def workload(
    count: int, *models: str, rows: str = "1", deadline_s: float = math.inf, rate_per_s: float = 1000
) -> LoadWorkload:
    _, first, second = streams(3, 3)
    mix = [ModelMix(name, 1.0, deadline_s) for name in models]
    return mixed(uniform(rate_per_s, count / rate_per_s), mix, RowSizes.parse(rows), first, second)


async def test_every_request_is_sent_once_with_an_id_its_model_and_its_rows(fake: FakeTriton, url: str) -> None:
    sent = workload(200, "echo", "other", rows="1-4")
    result = await drive(url, sent)
    assert summarise(result).ok == 200
    assert len({request.id for request in fake.requests}) == 200
    assert all(request.id for request in fake.requests)
    seen = sorted((request.model_name, request.inputs[0].shape[0]) for request in fake.requests)
    assert seen == sorted((sent.models[model], rows) for model, rows in zip(sent.model, sent.rows, strict=True))
    assert result.workers == ("fake-0",)
    assert set(result.worker) == {0}


async def test_records_are_in_order_and_latency_counts_from_the_schedule(url: str) -> None:
    sent = workload(100, "echo")
    result = await drive(url, sent)
    assert np.array_equal(result.scheduled_s, sent.time_s)
    assert np.array_equal(result.model, sent.model)
    assert np.all(result.lateness_s >= 0)
    assert np.all(result.latency_s >= result.lateness_s)


async def test_a_request_that_waits_for_room_is_late_by_it(fake: FakeTriton, url: str) -> None:
    run = asyncio.create_task(drive(url, workload(3, "gated"), DriveOptions(max_in_flight=1)))
    await fake.seen(1)
    fake.gate.set()
    result = await run
    ended_s = result.scheduled_s + result.latency_s
    assert np.all(result.started_s[1:] >= ended_s[:-1])
    assert fake.most_in_flight == 1


async def test_an_open_loop_does_not_wait_for_answers(fake: FakeTriton, url: str) -> None:
    run = asyncio.create_task(drive(url, workload(50, "gated")))
    await fake.seen(50)
    fake.gate.set()
    assert summarise(await run).ok == 50
    assert fake.most_in_flight == 50


async def test_a_closed_loop_keeps_to_its_concurrency(fake: FakeTriton, url: str) -> None:
    result = await drive(url, workload(10, "echo"), DriveOptions(concurrency=3, duration_s=1.0))
    assert 1 <= fake.most_in_flight <= 3
    assert len(result) == len(fake.requests) > 3
    assert np.all(np.diff(result.scheduled_s) >= 0)


async def test_errors_are_counted_by_code(url: str) -> None:
    summary = summarise(await drive(url, workload(100, "echo", "broken")))
    assert summary.errors.keys() == {"UNAVAILABLE"}
    assert summary.ok + summary.errors["UNAVAILABLE"] == 100


async def test_a_deadline_is_counted_and_sent_only_if_asked(fake: FakeTriton, url: str) -> None:
    sent = workload(5, "echo", deadline_s=7.0)
    counted = await drive(url, sent)
    assert summarise(counted).within_deadline == 1
    assert min(left for left in fake.time_left_s if left is not None) > 7
    await drive(url, sent, DriveOptions(send_deadline=True))
    # gRPC rounds what it sends up.
    assert all(left is not None and left < 8 for left in fake.time_left_s[5:])


async def test_a_request_past_its_deadline_is_given_up(url: str) -> None:
    result = await drive(url, workload(3, "gated", deadline_s=0.05), DriveOptions(send_deadline=True))
    assert summarise(result).errors == {"DEADLINE_EXCEEDED": 3}
    assert summarise(result).within_deadline == 0


async def test_keys_travel_in_the_header(fake: FakeTriton, url: str) -> None:
    sent = dataclasses.replace(workload(3, "echo"), keys=("x", "y", "z"))
    await drive(url, sent, DriveOptions(key_header="x-my-key"))
    assert sorted(headers["x-my-key"] for headers in fake.headers) == ["x", "y", "z"]


async def test_connections_are_as_many_as_asked(fake: FakeTriton, url: str) -> None:
    await drive(url, workload(20, "echo"), DriveOptions(connections=3))
    assert len(fake.peers) == 3


async def test_stopping_sends_no_more_and_awaits_what_is_under_way(fake: FakeTriton, url: str) -> None:
    stop = asyncio.Event()
    run = asyncio.create_task(drive(url, workload(100_000, "gated", rate_per_s=100), stop=stop))
    await fake.seen(3)
    stop.set()
    fake.gate.set()
    result = await run
    assert 3 <= len(result) == len(fake.requests) < 100_000
    assert summarise(result).errors == {}


async def test_progress_ends_with_the_whole(url: str) -> None:
    seen: list[Progress] = []
    await drive(url, workload(60, "echo", "broken"), DriveOptions(progress_every_s=0.01), on_progress=seen.append)
    assert seen[-1].sent == seen[-1].finished == 60
    assert seen[-1].failed > 0
    assert seen[-1].in_flight == 0


async def test_an_unknown_model_is_named_before_anything_is_sent(fake: FakeTriton, url: str) -> None:
    with pytest.raises(LoadError, match="model missing"):
        await drive(url, workload(3, "missing"))
    assert fake.requests == []


async def test_too_many_rows_are_refused_with_the_limit(url: str) -> None:
    with pytest.raises(LoadError, match=r"rows is 9.*at most 8"):
        await drive(url, workload(3, "echo", rows="9"))


async def test_no_listener_is_said_so() -> None:
    (port,) = free_ports(1)
    with pytest.raises(LoadError, match="Check the model's name and --url"):
        await drive(f"127.0.0.1:{port}", workload(3, "echo"))


async def test_an_empty_workload_and_a_closed_loop_without_end_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="has no requests"):
        await drive(url, workload(3, "echo").until(0))
    with pytest.raises(ValueError, match="duration_s"):
        await drive(url, workload(3, "echo"), DriveOptions(concurrency=1))


class DefectiveFakeSender:
    """Raises what no sender should."""

    async def prepare(self, kinds: object, seed: int) -> None:
        pass

    async def send(self, model: str, rows: int, timeout_s: float, headers: object) -> CallResult:
        raise ZeroDivisionError("a defect")

    async def close(self) -> None:
        pass


async def test_a_defect_in_a_sender_ends_the_run() -> None:
    with pytest.raises(ZeroDivisionError, match="a defect"):
        await drive("", workload(3, "echo"), sender=DefectiveFakeSender())
