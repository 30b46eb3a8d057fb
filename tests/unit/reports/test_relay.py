"""Relays over real streams: agents on one side, balancers on the other."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from support.relays import balancing, relaying
from support.reports import ReceivedEvents, agent, report_of
from support.reports import calling as any_calling
from support.waiting import eventually

from balancer import bounds
from balancer.reports import relaying as module
from balancer.reports import report_pb2
from balancer.reports.codec import ReportEncoder
from balancer.reports.relaying import METHOD
from balancer.scheduler.events import Report, ReportsLost, SentPrompt
from balancer.scheduler.peers import UntoldPrompts

Call = grpc.aio.StreamStreamCall[report_pb2.RelayedReports, report_pb2.RelayAck]


def of(worker: str, least: int = 0) -> Callable[[Report], bool]:
    return lambda report: report.worker == worker and report.number >= least


def lost(worker: str) -> Callable[[object], bool]:
    return lambda event: isinstance(event, ReportsLost) and event.worker == worker


async def test_reports_of_all_workers_come_to_all_balancers_and_so_does_their_end() -> None:
    received = [ReceivedEvents(), ReceivedEvents()]
    async with (
        balancing(received[0]) as (intake, first),
        balancing(received[1]) as (_, second),
        relaying([first, second]) as (relay, address),
        agent(address, worker="a"),
    ):
        async with agent(address, worker="b"):
            for each in received:
                for worker in ("a", "b"):
                    report = await each.report(
                        lambda report, worker=worker: of(worker, 20)(report) and report.balancers == 2
                    )
                    assert report.models == report_of(worker, report.number).models
            assert (intake.counts.relays, intake.counts.streams) == (1, 0)
            assert relay.collector.counts.questions == 0
        for each in received:
            await each.until(lost("b"))
            assert not any(map(lost("a"), each.events))


async def test_a_balancer_that_comes_back_hears_all_again() -> None:
    first, second = ReceivedEvents(), ReceivedEvents()
    async with contextlib.AsyncExitStack() as stack:
        async with balancing(first) as (_, balancer):
            _, address = await stack.enter_async_context(relaying([balancer]))
            await stack.enter_async_context(agent(address, worker="a"))
            await first.report(of("a", 5))
        async with balancing(second, port=int(balancer.rpartition(":")[2])):
            await second.report(of("a", 5))


async def test_a_worker_of_two_relays_is_lost_with_the_second() -> None:
    received = ReceivedEvents()
    async with balancing(received) as (intake, balancer), contextlib.AsyncExitStack() as stack:
        _, first = await stack.enter_async_context(relaying([balancer]))
        async with relaying([balancer]) as (_, second):
            replicas = await stack.enter_async_context(agent(first, second, worker="a"))
            await eventually(lambda: replicas.connected == 2 and intake.counts.relays == 2)
            before = await received.report(of("a"), after=len(received.events))
        seen = len(received.events)
        after = await received.report(of("a", before.number + 20))
        assert after.stream == before.stream
        assert not any(map(lost("a"), received.events[:seen]))
        await stack.aclose()
        await received.until(lost("a"))
        assert intake.counts.taken_over == 0


async def test_an_agent_that_comes_by_itself_takes_its_worker_over_and_gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_REFUSED_S", 0.2)
    received = ReceivedEvents()
    async with (
        balancing(received) as (intake, balancer),
        relaying([balancer]) as (relay, address),
        agent(address, worker="a"),
        agent(address, worker="b"),
    ):
        by_relay = await received.report(of("a"))
        other = await received.report(of("b"))
        async with agent(balancer, worker="a", made=lambda worker, number: report_of(worker, number, incarnation=2)):
            itself = await received.report(lambda report: report.worker == "a" and report.incarnation == 2)
            assert itself.stream > by_relay.stream
            await eventually(lambda: relay.counts.refused > 0)
            await received.report(of("b"), after=len(received.events))
        seen = len(received.events)
        again = await received.report(lambda report: report.worker == "a" and report.incarnation == 1, after=seen)
        assert again.stream > itself.stream
        still = await received.report(of("b"), after=seen)
        assert still.stream == other.stream
        assert not any(map(lost("b"), received.events))
        assert intake.counts.invalid == 0


async def test_an_agent_hears_that_its_worker_drains_once_every_balancer_knows() -> None:
    received, slow = ReceivedEvents(), asyncio.Event()

    class FakeSlowBalancer:
        """Acknowledges its first message, and others once it may."""

        async def relay(self, _: object, context: Any) -> None:
            for number in itertools.count(1):
                message = await context.read()
                if message is grpc.aio.EOF:
                    return
                if number > 1:
                    await slow.wait()
                await context.write(report_pb2.RelayAck(received=number))

    handler = grpc.stream_stream_rpc_method_handler(
        FakeSlowBalancer().relay,
        request_deserializer=report_pb2.RelayedReports.FromString,
        response_serializer=report_pb2.RelayAck.SerializeToString,
    )
    server = grpc.aio.server()
    service = METHOD.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Relay": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def draining(worker: str, number: int) -> Report:
        return dataclasses.replace(report_of(worker, number), draining=True)

    try:
        async with (
            balancing(received) as (_, balancer),
            relaying([balancer, f"127.0.0.1:{port}"]) as (relay, address),
        ):
            await eventually(lambda: relay.connected == 2)
            async with agent(address, worker="a", made=draining) as replicas:
                await received.report(lambda report: report.draining)
                await eventually(lambda: replicas.connected == 1)
                assert replicas.unaware_of_draining
                slow.set()
                await eventually(lambda: not replicas.unaware_of_draining)
    finally:
        await server.stop(None)


async def test_prompts_of_one_balancer_come_to_the_others() -> None:
    received, untold = [ReceivedEvents(), ReceivedEvents()], UntoldPrompts()
    prompt = SentPrompt("m", 100.0, ((7, 64.0),))
    async with (
        balancing(received[0], prompts=untold.take) as (_, first),
        balancing(received[1]) as (_, second),
        relaying([first, second]) as (_, address),
        agent(address, worker="a"),
    ):
        for each in received:
            await each.report(of("a", 10))
        untold.add("a", prompt)
        report = await received[1].report(lambda report: bool(report.peers_prompts))
        assert report.peers_prompts == (prompt,)
        await received[0].report(of("a", report.number + 20))
        assert not any(event.peers_prompts for event in received[0].events if isinstance(event, Report))


async def test_agents_hear_what_pauses_balancers_allow() -> None:
    pause_s = 0.3
    async with (
        balancing(ReceivedEvents(), pause_s=lambda: pause_s) as (_, balancer),
        relaying([balancer]) as (_, address),
        agent(address, worker="a") as replicas,
    ):
        await eventually(lambda: replicas.connected == 1 and replicas.pause_s > 0.0)
        pause_s = 0.0
        await eventually(lambda: replicas.pause_s == 0.0)


calling = functools.partial(any_calling, method=METHOD, message=report_pb2.RelayedReports, answer=report_pb2.RelayAck)
"""A relay's stream, by hand."""


def encoded(*workers: str) -> list[report_pb2.WorkerReport]:
    return [ReportEncoder().encode(report_of(worker, 1)) for worker in workers]


async def test_a_report_out_of_bounds_harms_its_worker_alone() -> None:
    received = ReceivedEvents()
    async with balancing(received) as (intake, balancer), calling(balancer) as call:
        good, bad = encoded("good", "bad")
        await call.write(report_pb2.RelayedReports(reports=[bad]))
        await call.read()
        bad.number, bad.device = 2, "d" * 1000
        await call.write(report_pb2.RelayedReports(reports=[bad, good]))
        ack = await call.read()
        assert isinstance(ack, report_pb2.RelayAck)
        assert [each.worker for each in ack.refused] == ["bad"]
        assert "device" in ack.refused[0].why
        await received.report(of("good"))
        await received.until(lost("bad"))
        # What was on its way is left out, and what begins anew is taken.
        bad.device, bad.all_models = "", False
        await call.write(report_pb2.RelayedReports(reports=[bad]))
        await call.read()
        bad.number, bad.all_models = 3, True
        await call.write(report_pb2.RelayedReports(reports=[bad]))
        await received.report(of("bad", 3))
        numbers = [event.number for event in received.events if isinstance(event, Report) and event.worker == "bad"]
        assert numbers == [1, 3]
        assert intake.counts.invalid == 1


async def test_who_merely_names_a_worker_gets_none_of_its_prompts() -> None:
    untold, prompt = UntoldPrompts(), SentPrompt("m", 100.0, ((7, 64.0),))
    untold.add("w", prompt)
    async with balancing(ReceivedEvents(), prompts=untold.take) as (_, balancer), calling(balancer) as call:
        for fields in ({"all_models": False}, {"all_models": True, "device": "d" * 1000}):
            named = report_pb2.WorkerReport(worker="w", incarnation=1, number=1, **fields)
            await call.write(report_pb2.RelayedReports(reports=[named]))
            ack = await call.read()
            assert isinstance(ack, report_pb2.RelayAck)
            assert not ack.prompts
        await call.write(report_pb2.RelayedReports(reports=encoded("w")))
        ack = await call.read()
        assert isinstance(ack, report_pb2.RelayAck)
        assert [(each.worker, len(each.prompts)) for each in ack.prompts] == [("w", 1)]


async def test_a_message_of_too_many_workers_ends_the_stream_and_all_that_it_carried() -> None:
    received = ReceivedEvents()
    async with balancing(received) as (intake, balancer), calling(balancer) as call:
        await call.write(report_pb2.RelayedReports(reports=encoded("a", "b")))
        await call.read()
        too_many = [f"w{n}" for n in range(bounds.MAX_RELAYED + 1)]
        await call.write(report_pb2.RelayedReports(reports=encoded(*too_many)))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "reports: '65 entries' is refused; it has 64 at most" in (await call.details() or "")
        for worker in ("a", "b"):
            await received.until(lost(worker))
        assert (intake.counts.invalid, intake.counts.relays) == (1, 0)


async def test_a_silent_relay_is_given_up_with_its_workers() -> None:
    received = ReceivedEvents()
    async with balancing(received, silence_s=0.3) as (intake, balancer), calling(balancer) as call:
        await call.write(report_pb2.RelayedReports(reports=encoded("a")))
        await call.read()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await received.until(lost("a"))
        assert intake.counts.silent == 1
