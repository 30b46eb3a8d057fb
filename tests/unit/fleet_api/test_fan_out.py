import asyncio

import grpc
import pytest

from balancer.fleet_api.fan_out import Answers, FailedError, Failure, FanOut, summed_up

NOT_FOUND = Failure(grpc.StatusCode.NOT_FOUND, "no such thing")
GONE = Failure(grpc.StatusCode.UNAVAILABLE, "gone")


async def test_answers_and_failures_are_by_worker() -> None:
    async def ask(worker: str) -> str:
        if worker == "b":
            raise FailedError(NOT_FOUND)
        return worker.upper()

    answers = await FanOut().each(["a", "b", "c"], ask, 5.0)
    assert (answers.given, answers.failed) == ({"a": "A", "c": "C"}, {"b": NOT_FOUND})


async def test_a_silent_worker_costs_its_own_answer_alone() -> None:
    never = asyncio.Event()

    async def ask(worker: str) -> str:
        if worker == "silent":
            await never.wait()
        return worker

    answers = await FanOut().each(["silent", "a"], ask, 0.05)
    assert answers.given == {"a": "a"}
    assert answers.failed["silent"].away
    assert answers.failed["silent"].words == "silent did not answer within 0.05 s"


async def test_so_many_questions_are_sent_at_once() -> None:
    under_way, most = 0, 0

    async def ask(worker: str) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await FanOut(at_once=3).each(map(str, range(20)), ask, 5.0)
    assert most == 3


def test_without_an_answer_what_a_worker_said_of_the_question_counts() -> None:
    with pytest.raises(FailedError) as error:
        Answers(failed={"a": GONE, "b": NOT_FOUND}).any()
    assert error.value.failure is NOT_FOUND
    with pytest.raises(FailedError, match="no worker is listed"):
        Answers().any()


async def test_who_comes_amid_a_round_of_the_same_question_gets_an_answer_that_begins_later() -> None:
    fan_out, begun, gates = FanOut(), 0, [asyncio.Event(), asyncio.Event()]

    async def ask() -> int:
        nonlocal begun
        number = begun
        begun += 1
        await gates[number].wait()
        return number

    first = asyncio.create_task(fan_out.fresh("question", ask))
    await asyncio.sleep(0)
    later = [asyncio.create_task(fan_out.fresh("question", ask)) for _ in range(5)]
    await asyncio.sleep(0)
    assert begun == 1
    gates[0].set()
    assert await first == 0
    gates[1].set()
    assert await asyncio.gather(*later) == [1] * 5
    assert begun == 2
    gates.append(asyncio.Event())
    gates[2].set()
    assert await fan_out.fresh("question", ask) == 2


async def test_a_failure_is_everybodys_who_waited_for_it_and_nobody_elses() -> None:
    fan_out, gate, failing = FanOut(), asyncio.Event(), True

    async def ask() -> str:
        await gate.wait()
        if failing:
            raise FailedError(GONE)
        return "well"

    first, second = (asyncio.create_task(fan_out.fresh("question", ask)) for _ in range(2))
    await asyncio.sleep(0)
    gate.set()
    for task in (first, second):
        with pytest.raises(FailedError, match="gone"):
            await task
    failing = False
    assert await fan_out.fresh("question", ask) == "well"


async def test_a_caller_that_leaves_takes_the_answer_from_nobody() -> None:
    fan_out, gate = FanOut(), asyncio.Event()

    async def ask() -> str:
        await gate.wait()
        return "well"

    first, second, third = (asyncio.create_task(fan_out.fresh("question", ask)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    gate.set()
    assert await third == "well"


async def test_different_questions_are_bounded() -> None:
    fan_out, gate = FanOut(most_rounds=2), asyncio.Event()
    tasks = [asyncio.create_task(fan_out.fresh(number, gate.wait)) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(FailedError, match="more than 2 different questions") as error:
        await fan_out.fresh(3, gate.wait)
    assert error.value.failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    gate.set()
    await asyncio.gather(*tasks)
    assert await fan_out.fresh(3, gate.wait)


def test_one_failure_stands_for_several() -> None:
    assert summed_up({"a": NOT_FOUND, "b": NOT_FOUND}, 2, "Load") is NOT_FOUND
    failure = summed_up({"a": NOT_FOUND, "b": GONE}, 3, "Load")
    assert failure.words == "Load failed on 2 of 3 workers: a: no such thing; b: gone"
    assert failure.code is grpc.StatusCode.NOT_FOUND


def test_statuses_are_those_of_triton() -> None:
    assert [NOT_FOUND.http_status, GONE.http_status] == [404, 503]
    assert Failure(grpc.StatusCode.INTERNAL, "").http_status == 500
    assert Failure.of_status(400, "").code is grpc.StatusCode.INVALID_ARGUMENT
    assert Failure.of_status(418, "").code is grpc.StatusCode.INTERNAL


def test_a_worker_that_restricts_a_call_is_not_away() -> None:
    assert GONE.away
    assert not Failure(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, ...", 403).away
    assert not NOT_FOUND.away
