from hypothesis import given
from hypothesis import strategies as st
from support.reports import report_of

from balancer import bounds
from balancer.reports import report_pb2
from balancer.reports.codec import ReportDecoder
from balancer.reports.outgoing import Outgoing
from balancer.reports.prompts import PromptLog
from balancer.scheduler.events import ModelReport, Report

WORKERS = ("a", "b", "c")


class Heard:
    """A balancer, as far as messages go: what it knows of each worker, by decoders as it has them."""

    def __init__(self) -> None:
        self.decoders: dict[str, ReportDecoder] = {}
        self.reports: dict[str, Report] = {}
        self.received = 0

    def hear(self, message: report_pb2.RelayedReports) -> None:
        self.received += 1
        for worker in message.lost:
            del self.decoders[worker], self.reports[worker]
        for each in report_pb2.RelayedReports.FromString(message.SerializeToString()).reports:
            self.reports[each.worker] = self.decoders.setdefault(each.worker, ReportDecoder()).decode(each)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.sampled_from(WORKERS), st.integers(0, 3)),
        st.tuples(st.just("lose"), st.sampled_from(WORKERS), st.just(0)),
        st.tuples(st.sampled_from(("send", "acknowledge")), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@given(moves)
def test_a_balancer_ends_with_the_newest_of_every_worker_there_is_and_of_no_other(
    moves: list[tuple[str, str, int]],
) -> None:
    newest: dict[str, Report] = {}
    outgoing, heard = Outgoing("balancer", {}, {}), Heard()
    for number, (move, worker, executions) in enumerate(moves):
        if move == "report":
            newest[worker] = report_of(worker, number, executions=executions)
            outgoing.offer(newest[worker])
        elif move == "lose":
            newest.pop(worker, None)
            outgoing.lose(worker)
        elif move == "send" and outgoing.may_send:
            heard.hear(outgoing.message(1))
        elif move == "acknowledge":
            outgoing.acknowledged(heard.received, WORKERS)
    outgoing.acknowledged(heard.received, WORKERS)
    while outgoing.waits:
        heard.hear(outgoing.message(1))
        outgoing.acknowledged(heard.received, WORKERS)
    assert {worker: report.number for worker, report in heard.reports.items()} == {
        worker: report.number for worker, report in newest.items()
    }
    assert {worker: report.models for worker, report in heard.reports.items()} == {
        worker: report.models for worker, report in newest.items()
    }


def test_the_one_that_waits_longest_is_sent_first_and_only_its_newest() -> None:
    outgoing = Outgoing("balancer", {}, {})
    workers = [f"w{n}" for n in range(bounds.MAX_RELAYED + 6)]
    assert not any(outgoing.offer(report_of(worker, 1)) for worker in workers)
    assert all(outgoing.offer(report_of(worker, 2)) for worker in workers[:3])
    first, second = outgoing.message(2), outgoing.message(2)
    assert [each.worker for each in first.reports] == workers[: bounds.MAX_RELAYED]
    assert [each.worker for each in second.reports] == workers[bounds.MAX_RELAYED :]
    assert [each.number for each in first.reports[:4]] == [2, 2, 2, 1]
    assert {each.balancers for each in first.reports} == {2}


def test_what_finds_no_room_in_a_message_is_the_next_ones_first() -> None:
    outgoing = Outgoing("balancer", {}, {})
    sizes = tuple((rows, 2**50, 1e12) for rows in range(1, bounds.MAX_BATCH_SIZES + 1))
    models = tuple(ModelReport(f"m{n}", "1", ready=True, batches=sizes) for n in range(8))
    heard, numbers = Heard(), []
    for worker in WORKERS * 2:
        outgoing.offer(Report(worker, 1, 1, ready=True, models=models))
    for worker in (f"w{n}" for n in range(9)):
        outgoing.offer(Report(worker, 1, 1, ready=True, models=models))
    while outgoing.waits:
        message = outgoing.message(1)
        assert message.ByteSize() <= bounds.MAX_REPORT_BYTES
        numbers.append(len(message.reports))
        heard.hear(message)
    assert len(numbers) > 1
    assert sum(numbers) == len(heard.reports) == len(WORKERS) + 9
    assert all(len(report.models) == len(models) for report in heard.reports.values())


def test_a_message_waits_for_the_last_ones_acknowledgement() -> None:
    outgoing = Outgoing("balancer", {}, {"a": PromptLog()})
    outgoing.offer(report_of("a", 0))
    outgoing.message(1)
    for received in (0, 2):
        outgoing.acknowledged(received, ())
        assert not outgoing.may_send
    outgoing.acknowledged(1, ())
    assert outgoing.may_send


def test_a_balancer_knows_that_a_worker_drains_once_it_acknowledged_the_message_that_said_so() -> None:
    outgoing = Outgoing("balancer", {}, {"a": PromptLog()})
    outgoing.offer(report_of("a", 0))
    outgoing.message(1)
    outgoing.offer(Report("a", 1, 1, ready=True, draining=True))
    outgoing.acknowledged(1, ())
    assert not outgoing.knows_draining("a")
    outgoing.message(1)
    assert not outgoing.knows_draining("a")
    outgoing.acknowledged(2, ())
    assert outgoing.knows_draining("a")
    outgoing.offer(report_of("a", 2))
    outgoing.message(1)
    assert not outgoing.knows_draining("a")


def test_of_a_worker_that_was_refused_all_is_said_anew() -> None:
    outgoing = Outgoing("balancer", {}, {})
    outgoing.offer(report_of("a", 0))
    assert outgoing.message(1).reports[0].all_models
    assert outgoing.forget("a")
    assert not outgoing.forget("a")
    outgoing.offer(report_of("a", 1))
    message = outgoing.message(1)
    assert message.reports[0].all_models
    assert not message.lost
