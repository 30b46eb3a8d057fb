"""What an application says of itself whose process has the agent."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.agent.asgi_source import AsgiSource, Message, Reporting
from balancer.cli.agent import options_in
from balancer.errors import OperatorError
from balancer.scheduler.events import ModelReport


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def report_of(source: AsgiSource) -> ModelReport:
    state = asyncio.run(source.read())
    assert state.ready
    return state.models[0]


def test_what_waits_takes_no_time_yet() -> None:
    clock = Clock()
    source = AsgiSource("digits", lambda: 1, clock)
    first, second = source.came(), source.came()
    clock.now_s = 2.0
    source.ended(first, 200, timed=True)
    clock.now_s = 5.0
    source.ended(second, 200, timed=True)
    report = report_of(source)
    assert (report.model, report.instances, report.succeeded) == ("digits", 1, 2)
    assert report.batches == ((1, 2, 5.0),)


def test_failures_and_what_is_cut_short_teach_no_time() -> None:
    source = AsgiSource("digits", lambda: 8)
    for status in (500, 503, 0, 404):
        source.ended(source.came(), status, timed=True)
    source.ended(source.came(), 200, timed=False)
    report = report_of(source)
    assert (report.succeeded, report.failed, report.batches) == (2, 2, ())


@given(st.integers(1, 4), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=40))
def test_no_more_execute_than_may_and_the_oldest_begin_first(at_once: int, steps: list[int | None]) -> None:
    source, open_ = AsgiSource("m", lambda: at_once), []
    for step in steps:
        if step is None:
            open_.append(source.came())
        elif open_:
            source.ended(open_.pop(step % len(open_)), 200, timed=True)
        report = report_of(source)
        assert report.executing == min(len(open_), at_once)
        assert report.pending == len(open_) - report.executing


def test_more_may_execute_from_now_on() -> None:
    limits = [1]
    source = AsgiSource("m", lambda: limits[0])
    requests = [source.came() for _ in range(4)]
    limits[0] = 3
    source.ended(requests[0], 200, timed=True)
    report = report_of(source)
    assert (report.executing, report.pending, report.instances) == (3, 0, 3)


async def asked(*answer: Message, path: str = "/v2/models/m/infer", method: str = "POST", fails: bool = False) -> Any:
    """What a source says once an application has answered so."""

    async def application(scope: Message, receive: Any, send: Any) -> None:
        assert (await source.read()).models[0].executing == (method == "POST")
        for message in answer:
            await send(message)
        if fails:
            raise RuntimeError("of the application")

    async def report() -> None:
        await asyncio.Event().wait()

    async def take(_: Message) -> None:
        pass

    source = AsgiSource("m", lambda: 1)
    reporting = Reporting(application, source, report)
    try:
        await reporting({"type": "http", "method": method, "path": path}, take, take)
    except RuntimeError:
        assert fails
    finally:
        reporting._reporting.cancel()
    return (await source.read()).models[0]


BEGIN, END = {"type": "http.response.start", "status": 200}, {"type": "http.response.body"}


@pytest.mark.parametrize(
    ("answer", "further", "succeeded", "failed", "timed"),
    [
        ((BEGIN, END), {}, 1, 0, 1),
        ((BEGIN, END | {"more_body": True}, END), {"path": "/v1/chat/completions"}, 1, 0, 0),
        ((BEGIN | {"status": 503}, END), {}, 0, 1, 0),
        ((BEGIN, END | {"more_body": True}), {}, 0, 0, 0),
        ((BEGIN,), {"fails": True}, 0, 1, 0),
        ((), {"fails": True}, 0, 1, 0),
        ((BEGIN, END), {"method": "GET"}, 0, 0, 0),
    ],
)
async def test_what_an_answer_counts_as(
    answer: tuple[Message, ...], further: dict[str, Any], succeeded: int, failed: int, timed: int
) -> None:
    report = await asked(*answer, **further)
    assert (report.succeeded, report.failed, len(report.batches)) == (succeeded, failed, timed)
    assert (report.executing, report.pending) == (0, 0)


def test_options_come_by_the_environment_as_by_the_command() -> None:
    options = options_in("--balancer 10.0.0.5:9102 --balancer b:9103 --device 'H100 NVL'", "digits-Digits-a")
    assert (options.worker, options.balancers) == ("digits-Digits-a", ("10.0.0.5:9102", "b:9103"))
    assert (options.device, options.control) == ("H100 NVL", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no --balancer HOST:PORT"),
        ("--balancer", "requires an argument"),
        ("--balancer b:9102 --tls-name b", "--tls-ca and --tls-name go together"),
        ("--balancer b:9102 --unknown", "No such option"),
        ("--balancer 'b", "No closing quotation"),
        ("--balancer b", "'b' is not host:port"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        options_in(text, "w")
