"""Through a real Envoy: how each request ended reaches the balancer process that picked for it, and nobody else."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.bootstrap import changed
from support.envoy_fakes import FakeBalancer, Rig, a_request, go_on
from support.waiting import PATIENCE_S

from balancer.extproc.outcomes import Outcome, verdict_of

FAULT = (False, "")

pytestmark = pytest.mark.integration


async def next_outcome(balancer: FakeBalancer) -> Outcome:
    return await asyncio.wait_for(balancer.outcomes.get(), PATIENCE_S)


async def test_outcomes_go_to_the_process_that_picked(tmp_path: Path) -> None:
    rig = Rig(tmp_path, balancers=[FakeBalancer(), FakeBalancer(), FakeBalancer()])
    async with rig.running():
        for process, balancer in enumerate(rig.balancers):
            balancer.respond = lambda _, process=process, balancer=balancer: go_on(
                process=str(process), number=str(1000 * process + len(balancer.seen))
            )
        for _ in range(30):
            await rig.infer()
        for process, balancer in enumerate(rig.balancers):
            picked = len(balancer.seen)
            assert picked > 0, "Envoy asked this process nothing; it balances over all"
            numbers = {(await next_outcome(balancer)).number for _ in range(picked)}
            assert numbers == {1000 * process + count for count in range(1, picked + 1)}
            assert balancer.outcomes.empty()


async def test_all_processes_receive_what_nobody_picked(tmp_path: Path) -> None:
    rig = Rig(tmp_path, balancers=[FakeBalancer(), FakeBalancer()])
    async with rig.running():
        for balancer in rig.balancers:
            balancer.respond = lambda _: go_on()
        for _ in range(6):
            await rig.infer()
        for balancer in rig.balancers:
            outcomes = [await next_outcome(balancer) for _ in range(6)]
            assert {outcome.number for outcome in outcomes} == {-1}
            assert {outcome.model for outcome in outcomes} == {"m"}


async def test_what_an_outcome_says(rig: Rig) -> None:
    (balancer,), worker = rig.balancers, rig.workers[1]
    balancer.respond = lambda _: go_on(worker.grpc_endpoint, process="0", number="17")

    async def wait_a_little(request: Any, context: Any) -> Any:
        await asyncio.sleep(0.05)
        return worker.answer(request)

    worker.infer = wait_a_little
    await rig.stub.ModelInfer(a_request(payload_bytes=1000), timeout=PATIENCE_S, metadata=[("x-request-id", "r1")])
    outcome = await next_outcome(balancer)
    assert outcome._replace(latency_s=0, first_byte_s=0, bytes_in=0, bytes_out=0) == Outcome(
        number=17,
        upstream=worker.grpc_endpoint,
        latency_s=0,
        first_byte_s=0,
        http_status=200,
        grpc_status=0,
        by="",
        bytes_in=0,
        bytes_out=0,
        gateway_id=outcome.gateway_id,
        path="/inference.GRPCInferenceService/ModelInfer",
        model="m",
        attempts=1,
    )
    assert 0.05 <= outcome.first_byte_s <= outcome.latency_s
    assert min(outcome.bytes_in, outcome.bytes_out) > 1000
    assert verdict_of(outcome) != FAULT


async def test_an_outcome_of_rest(rig: Rig) -> None:
    (balancer,), worker = rig.balancers, rig.workers[1]
    balancer.respond = lambda _: go_on(worker.http_endpoint, process="0", number="18")
    worker.http_status = 503
    async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/models/a%20b/infer?x=1", data=b"12345") as response:
        assert response.status == 503
    outcome = await next_outcome(balancer)
    assert (outcome.number, outcome.upstream, outcome.http_status) == (18, worker.http_endpoint, 503)
    assert (outcome.grpc_status, outcome.model, outcome.bytes_in) == (-1, "a b", 5)
    assert verdict_of(outcome) == FAULT


async def test_a_client_that_leaves_is_no_fault(rig: Rig) -> None:
    executing = asyncio.Event()

    async def never(request: Any, context: Any) -> Any:
        executing.set()
        await asyncio.Event().wait()

    for worker in rig.workers:
        worker.infer = never
    call = rig.stub.ModelInfer(a_request(), timeout=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await executing.wait()
    call.cancel()
    outcome = await next_outcome(rig.balancers[0])
    assert outcome.by == "client"
    assert outcome.upstream
    assert verdict_of(outcome) != FAULT


async def test_a_worker_that_dies_is_at_fault(rig: Rig) -> None:
    executing = asyncio.Event()

    async def never(request: Any, context: Any) -> Any:
        executing.set()
        await asyncio.Event().wait()

    worker = rig.workers[0]
    worker.infer = never
    rig.balancers[0].respond = lambda _: go_on(worker.grpc_endpoint, process="0", number="1")
    call = rig.stub.ModelInfer(a_request(), timeout=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await executing.wait()
    await worker.stop()
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    outcome = await next_outcome(rig.balancers[0])
    assert (outcome.number, outcome.upstream) == (1, worker.grpc_endpoint)
    assert verdict_of(outcome) == FAULT


async def test_the_balancer_can_answer_itself(rig: Rig) -> None:
    for http_status, grpc_status in ((503, 14), (429, 8), (404, 5)):
        response = ext_proc.ProcessingResponse()
        immediate = response.immediate_response
        immediate.status.code = http_status
        immediate.grpc_status.status = grpc_status
        immediate.body = b"why: 100% of it"
        response.dynamic_metadata.update({"balancer": {"process": "0", "number": "0.5"}})
        rig.balancers[0].respond = lambda _, response=response: response
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rig.infer()
        assert (raised.value.code().value[0], raised.value.details()) == (grpc_status, "why: 100% of it")
        outcome = await next_outcome(rig.balancers[0])
        assert (outcome.number, outcome.upstream, outcome.attempts, outcome.grpc_status) == (5, "", 0, grpc_status)
        assert verdict_of(outcome) != FAULT
        async with rig.http.get(f"http://{rig.envoy.endpoint}/v2/models/m/ready") as reply:
            assert (reply.status, await reply.text()) == (http_status, "why: 100% of it")
        await next_outcome(rig.balancers[0])  # of the question by REST


async def test_envoys_own_log_shares_the_request_id(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    rig = Rig(tmp_path)
    rig.options = changed(rig.options, access_log=str(log))
    async with rig.running():
        rig.balancers[0].respond = lambda _: go_on(rig.workers[2].grpc_endpoint, process="0", number="1")
        await rig.infer(metadata=[("x-request-id", "mine")])
        [entry] = await rig.logged(log, 1)
    assert entry["request_id"] == "mine"
    assert entry["gateway_request_id"] not in {"", "mine", None}
    assert entry["worker"] == "w2"
    assert int(entry["pick_us"]) > 0
    # Milliseconds, each a part of the whole.
    assert 0 <= entry["worker_first_byte_ms"] <= entry["worker_ms"] <= entry["duration_ms"]
    assert 0 <= entry["received_ms"] <= entry["duration_ms"]
    assert (entry["picked"], entry["served"]) == (rig.workers[2].grpc_endpoint,) * 2
    assert (entry["status"], entry["grpc_status"], entry["attempts"]) == (200, 0, 1)
