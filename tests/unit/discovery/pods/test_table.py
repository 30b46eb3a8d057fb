"""Which pods are workers, and when they drain."""

from typing import Any

from support.pods import pod

from balancer.discovery.pods.pod import InvalidValue, Pod, read_pod
from balancer.discovery.pods.watch import PodTable


class Table(PodTable):
    """That takes pods by what they say, and keeps what was complained of."""

    def __init__(self, most: int = 10) -> None:
        self.refused: list[tuple[str, str]] = []
        super().__init__(most, self._refuse)

    def _refuse(self, name: str, invalid: InvalidValue) -> None:
        self.refused.append((name, invalid.field))

    def set(self, name: str, last: int = 1, **more: Any) -> None:
        self.put(made(name, last, **more))

    @property
    def listed(self) -> dict[str, bool]:
        """By name whether it drains."""
        return {worker.name: worker.draining for worker in self.workers()}


def made(name: str, last: int = 1, **more: Any) -> Pod:
    return read_pod(pod(name, last, **more), (8001, 8000))


def test_a_pod_is_a_worker_from_the_first_time_that_it_is_ready() -> None:
    table = Table()
    table.set("a", phase="Pending", ready=False)
    assert table.listed == {}
    table.set("a", ready=False)
    assert table.listed == {}
    assert table.counts == {"not_ready": 1}
    table.set("a")
    assert table.listed == {"a": False}
    assert table.counts == {"ready": 1}


def test_one_that_is_no_longer_ready_drains_until_it_is() -> None:
    table = Table()
    table.set("a")
    table.set("a", ready=False)
    assert table.listed == {"a": True}
    assert table.counts == {"draining": 1}
    table.set("a")
    assert table.listed == {"a": False}


def test_one_that_terminates_drains_at_once_though_it_is_ready() -> None:
    table = Table()
    table.set("a")
    table.set("a", deleted=True)
    assert table.listed == {"a": True}
    table.set("a", deleted=True, ready=False)
    assert table.listed == {"a": True}
    table.set("a", deleted=True, phase="Succeeded", ready=False)
    assert table.listed == {}
    table.remove("a")
    assert (table.listed, len(table)) == ({}, 0)


def test_one_that_terminates_and_never_was_ready_is_left_out() -> None:
    table = Table()
    table.set("a", ready=False)
    table.set("a", ready=False, deleted=True)
    assert table.listed == {}


def test_another_pod_of_the_name_has_to_become_ready_itself() -> None:
    table = Table()
    table.set("a")
    table.set("a", 2, uid="second", ready=False)
    assert table.listed == {}


def test_a_new_list_keeps_who_was_ready() -> None:
    table = Table()
    table.set("a", 1)
    table.set("b", 2)
    table.set("c", 3)
    table.replace([made("a", 1, ready=False), made("b", 2, ready=False, uid="second")], beyond=False)
    assert table.listed == {"a": True}
    table.set("c", 3, ready=False)
    assert table.listed == {"a": True}


def test_of_one_endpoint_the_ready_then_the_youngest_pod_counts() -> None:
    table = Table()
    table.set("old", created="2026-01-01T00:00:00Z")
    table.set("new", created="2026-01-02T00:00:00Z")
    assert table.listed == {"new": False}
    assert table.counts == {"ready": 1, "duplicate": 1}
    table.set("new", created="2026-01-02T00:00:00Z", deleted=True)
    assert table.listed == {"old": False}
    table.set("beside", annotations={"balancer/grpc-port": "1", "balancer/http-port": "2"})
    assert table.listed == {"beside": False, "old": False}


def test_a_full_table_takes_no_more_until_a_new_list() -> None:
    table = Table(most=2)
    table.set("a", 1)
    table.set("b", 2)
    table.set("c", 3)
    assert (list(table.listed), table.beyond, table.has_room_again) == (["a", "b"], True, False)
    table.set("a", 1, deleted=True)
    assert table.listed == {"a": True, "b": False}
    table.remove("a")
    assert table.has_room_again
    table.replace([made("b", 2), made("c", 3)], beyond=False)
    assert (list(table.listed), table.beyond) == (["b", "c"], False)


def test_an_invalid_value_is_logged_once_while_it_stays() -> None:
    table = Table()
    bad = {"balancer/weight": "much"}
    table.set("a", annotations=bad)
    table.set("a", annotations=bad, ready=False)
    table.replace([made("a", annotations=bad)], beyond=False)
    assert table.refused == [("a", "weight")]
    table.set("a", annotations={"balancer/weight": "more"})
    table.set("a")
    table.set("a", annotations=bad)
    assert table.refused == [("a", "weight")] * 3
