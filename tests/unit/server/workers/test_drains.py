"""Workers that are drained by hand: over which lists that lasts, and when nothing is left."""

import logging
from collections.abc import Sequence

import pytest
from support.fleets import model, report

from balancer.discovery.workers import WorkerSpec, changes
from balancer.kernel.settings import Settings
from balancer.scheduler.events import Sent, Withdrawn
from balancer.scheduler.router import Router
from balancer.server.workers.drains import Drains, UnlistedWorkerError
from policies.base import Request
from policies.least_requests import LeastRequests

LISTED = tuple(WorkerSpec(name=f"w{n}", address="10.0.0.1", grpc_port=8001 + n, http_port=9001 + n) for n in range(3))


class Rig:
    """A router that follows a list, with drains over it, and a clock."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.now_s = 0.0
        self.router = Router(LeastRequests(), settings)
        self.drains = Drains(self.router, lambda: self.now_s, self.list)
        self._workers: tuple[WorkerSpec, ...] = ()
        self._number = 0
        self.list(LISTED)
        self.report()

    def list(self, listed: Sequence[WorkerSpec]) -> None:
        workers = self.drains.over(tuple(listed))
        for event in changes(self._workers, workers):
            self.router.observe(event, self.now_s)
        self._workers = workers

    def report(self, **fields: object) -> None:
        """Of all workers; `fields` of the model."""
        self._number += 1
        for worker in self._workers:
            new = report(worker.name, self._number, [model(**fields)])
            self.drains.observe(new)
            self.router.observe(new, self.now_s)

    def picked(self) -> set[str]:
        """By 30 requests that end at once."""
        found = set()
        for _ in range(30):
            decision = self.router.route(Request("m"), self.now_s)
            self.router.observe(Withdrawn(decision.number), self.now_s)
            found.add(decision.worker)
        return found

    def later(self, seconds: float, **fields: object) -> None:
        self.now_s += seconds
        self.report(**fields)


def test_a_worker_drained_by_hand_gets_nothing_until_it_is_undone(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.INFO):
        assert rig.drains.drain("w1", "alice")["draining"]
        rig.drains.drain("w1", "alice")
        assert rig.picked() == {"w0", "w2"}
        assert not rig.drains.undrain("w1", "bob")["draining"]
        rig.drains.undrain("w1", "bob")
    assert rig.picked() == {"w0", "w1", "w2"}
    logged = [(each.message, each.__dict__["worker"], each.__dict__["by"]) for each in caplog.records]
    assert logged == [("worker drained by hand", "w1", "alice"), ("worker undrained by hand", "w1", "bob")]


def test_it_outlasts_a_new_list_and_new_settings() -> None:
    rig = Rig()
    rig.drains.drain("w1", "alice")
    rig.list([*LISTED, LISTED[0].model_copy(update={"name": "w3", "grpc_port": 1, "http_port": 2})])
    rig.list([each.model_copy(update={"weight": 2.0}) for each in LISTED])
    rig.router.configure(LeastRequests(), Settings())
    assert "w1" in rig.drains
    assert rig.picked() == {"w0", "w2"}


def test_it_ends_with_the_worker_so_that_the_next_of_that_name_is_used() -> None:
    rig = Rig()
    rig.drains.drain("w1", "alice")
    rig.list([LISTED[0], LISTED[2]])
    rig.list(LISTED)
    rig.report()
    assert rig.picked() == {"w0", "w1", "w2"}
    rig.drains.drain("w1", "alice")
    rig.list([each.model_copy(update={"grpc_port": each.grpc_port + 100}) for each in LISTED])
    rig.report()
    assert rig.picked() == {"w0", "w1", "w2"}


def test_a_worker_that_discovery_drains_too_is_not_used_again_by_undoing_it() -> None:
    rig = Rig()
    rig.list([each.model_copy(update={"draining": each.name == "w1"}) for each in LISTED])
    rig.drains.drain("w1", "alice")
    answer = rig.drains.undrain("w1", "alice")
    assert answer["draining"]
    assert not answer["drained_by_hand"]
    assert rig.picked() == {"w0", "w2"}


def test_nothing_is_left_once_the_own_count_and_the_agent_say_so_for_a_while() -> None:
    rig = Rig()
    rig.router.observe(Sent(1000, "w1", "m"), rig.now_s)

    def why() -> str:
        return str(rig.drains.state("w1")["why"])

    assert why() == "it is not drained by hand"
    rig.drains.drain("w1", "alice")
    assert why() == "1 requests of this balancer's are in flight there"
    rig.router.observe(Withdrawn(1000), rig.now_s)
    assert why() == "its agent has not reported since it drains"
    rig.later(0.1, pending=2.0, executing=0.5)
    assert why() == "its agent reports some 2.5 requests that wait or execute there"
    rig.later(0.1)
    assert why() == "it was busy 0.1 s ago, and is to be idle for 0.3 s"
    # Something ended meanwhile that was not seen to begin.
    rig.later(0.2, succeeded=1)
    assert why() == "it was busy 0.0 s ago, and is to be idle for 0.3 s"
    rig.later(0.31, succeeded=1)
    assert why() == ""
    assert rig.drains.state("w1")["nothing_left"]


def test_long_batches_are_waited_for_longer() -> None:
    rig = Rig()
    rig.drains.drain("w1", "alice")
    rig.report(batches=((1, 10, 20.0),))
    rig.later(1.0, batches=((1, 10, 20.0),))
    assert rig.drains.state("w1")["why"] == "it was busy 1.0 s ago, and is to be idle for 4.0 s"


def test_where_its_agent_is_silent_nobody_says_that_nothing_is_left() -> None:
    rig = Rig()
    rig.drains.drain("w1", "alice")
    rig.report()
    rig.now_s += 60.0
    assert rig.drains.state("w1")["why"] == "its agent is silent, so nobody knows what others have there"


def test_without_agents_the_own_count_suffices() -> None:
    rig = Rig(Settings(reports_required=False))
    rig.list([*LISTED, LISTED[0].model_copy(update={"name": "w3", "grpc_port": 1, "http_port": 2})])
    rig.drains.drain("w3", "alice")
    rig.now_s += 1.0
    assert rig.drains.state("w3")["nothing_left"]


def test_a_worker_that_is_not_listed_is_refused_with_those_that_are() -> None:
    rig = Rig()
    for ask in (rig.drains.state, lambda name: rig.drains.drain(name, "alice")):
        with pytest.raises(UnlistedWorkerError, match=r"worker: discovery lists no 'w9'; it lists w0, w1, w2$"):
            ask("w9")
    many = [LISTED[0].model_copy(update={"name": f"w{n}", "grpc_port": n, "http_port": n + 500}) for n in range(1, 90)]
    rig.list(many)
    with pytest.raises(UnlistedWorkerError, match=r"w10 and 79 more$"):
        rig.drains.undrain("w" * 5000, "alice")


def test_the_metric_names_who_is_drained_by_hand() -> None:
    rig = Rig()
    rig.drains.drain("w2", "alice")
    (family,) = rig.drains.metrics()
    assert [(each.labels, each.value) for each in family.samples] == [({"worker": "w2"}, 1.0)]
    rig.drains.undrain("w2", "alice")
    (family,) = rig.drains.metrics()
    assert not family.samples
