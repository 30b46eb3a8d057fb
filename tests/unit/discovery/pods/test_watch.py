"""The watch over an API that does as the test says: what is listed, when it lists anew, and that it ends."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.fake_kubernetes_api import END, FakeApi
from support.pods import Followed, pod, until_stopped
from support.waiting import eventually

from balancer.discovery.cluster import watch as watching
from balancer.discovery.cluster.api import ApiError, ClusterAccess
from balancer.discovery.inference.pods import PodSource
from balancer.discovery.pods.watch import PodsWanted


class Following(Followed[dict[str, bool]]):
    """A source of pods."""

    def __init__(self, api: FakeApi, most: int) -> None:
        source = PodSource(PodsWanted(ClusterAccess("app=triton"), max_pods=most), lambda _: api)  # type: ignore[arg-type, return-value]
        super().__init__(source, lambda workers: {worker.name: worker.draining for worker in workers})
        self.counts = source.counts


@contextlib.asynccontextmanager
async def followed(api: FakeApi, most: int = 10) -> AsyncIterator[Following]:
    following = Following(api, most)
    async with until_stopped(following.follow(), following.stop):
        yield following


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(watching, "_LONGEST_WAIT_S", 0.01)


async def test_a_list_then_every_change() -> None:
    api = FakeApi()
    api.list(pod("a", 1), pod("b", 2, ready=False))
    async with followed(api) as following:
        await following.until({"a": False})
        assert following.counts.connected
        api.tell("MODIFIED", "b", 2)
        await following.until({"a": False, "b": False})
        api.tell("MODIFIED", "a", 1, deleted=True)
        await following.until({"a": True, "b": False})
        api.tell("DELETED", "a", 1, deleted=True)
        await following.until({"b": False})
        assert api.watched == ["1"]
        assert following.counts.events == 3
        assert following.counts.pods == {"ready": 1}
    assert api.cuts.is_set()
    assert api.closed == 1


async def test_no_pods_are_a_list_too() -> None:
    api = FakeApi()
    api.list()
    async with followed(api) as following:
        await following.until({})


async def test_a_watch_that_ends_goes_on_from_the_last_version_bookmarks_included() -> None:
    api = FakeApi()
    api.list(pod("a"), version="5")
    api.tell("MODIFIED", "a", version="6", deleted=True)
    api.tell("BOOKMARK", "a", version="9")
    api.events_.put(END)
    async with followed(api) as following:
        await following.until({"a": True})
        await eventually(lambda: api.watched == ["5", "9"], "it watches on")
        assert following.counts.lists == {"start": 1}


async def test_a_version_that_is_too_old_has_the_pods_listed_anew() -> None:
    api = FakeApi()
    api.list(pod("a", 1), version="5")
    api.events_.put(ApiError("expired", "410"))
    api.list(pod("b", 2), version="50")
    async with followed(api) as following:
        await following.until({"b": False})
        await eventually(lambda: api.watched == ["5", "50"], "it watches from the new list")
        assert following.counts.lists == {"start": 1, "expired": 1}


async def test_while_the_api_is_away_the_last_list_stays_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    api = FakeApi()
    api.list(pod("a"), version="5")
    for _ in range(4):
        api.events_.put(ApiError("unreachable", "refused"))
    async with followed(api) as following:
        await eventually(lambda: api.watched == ["5"] * 5, "it tries again from where it was")
        assert following.listed == [{"a": False}]
        assert not following.counts.connected
        assert following.counts.failures == {"unreachable": 4}
        api.tell("MODIFIED", "a", deleted=True)
        await following.until({"a": True})
        assert following.counts.connected
    logged = [message for message in caplog.messages if message.startswith("discovery.kubernetes")]
    assert logged == [
        "discovery.kubernetes: no word from the API, the workers known last stay; trying again: refused",
        "discovery.kubernetes: the API answers again",
    ]
    assert api.closed == 5, "each try reads the credentials anew"


@pytest.mark.parametrize("cause", ["unreachable", "unauthorized", "forbidden"])
async def test_a_watch_that_is_refused_goes_on_where_it_was(cause: Any) -> None:
    api = FakeApi()
    api.lists.put(ApiError(cause, "no"))
    api.list(pod("a"), version="5")
    api.tell("BOOKMARK", "a", version="7")
    api.events_.put(ApiError(cause, "no"))
    api.tell("MODIFIED", "a", version="8", deleted=True)
    async with followed(api) as following:
        await following.until({"a": True})
        assert api.watched == ["5", "7"]
        assert following.counts.failures == {cause: 2}


@pytest.mark.parametrize("cause", ["server", "invalid", "config"])
async def test_what_the_server_fails_at_is_asked_for_from_the_start(cause: Any) -> None:
    api = FakeApi()
    api.lists.put(ApiError(cause, "no"))
    api.list(pod("a"), version="5")
    api.events_.put(ApiError(cause, "no"))
    api.list(pod("a"), pod("b", 2), version="6")
    async with followed(api) as following:
        await following.until({"a": False, "b": False})
        assert following.counts.failures == {cause: 2}


async def test_an_internal_error_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.list(pod("a"), version="5")
    api.events_.put(ZeroDivisionError())
    api.list(pod("b", 2), version="6")
    async with followed(api) as following:
        await following.until({"b": False})
    assert "a mistake of the balancer's" in caplog.text


async def test_more_pods_than_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.list(pod("a", 1), pod("b", 2), pod("c", 3))
    async with followed(api, most=2) as following:
        await following.until({"a": False, "b": False})
        api.list(pod("b", 2), pod("c", 3))
        api.tell("DELETED", "a", 1)
        await following.until({"b": False, "c": False})
        assert following.counts.lists == {"start": 1, "room": 1}
    assert "more than 2 pods match, and the others are left out; narrow label_selector" in caplog.text


async def test_what_is_not_taken_names_pod_annotation_value_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.list(pod("a", annotations={"balancer/weight": "much"}), {"metadata": {}})
    async with followed(api) as following:
        await following.until({"a": False})
        assert following.counts.invalid_values == {"weight": 1, "pod": 1}
    assert (
        'discovery.kubernetes: pod a: annotation balancer/weight: "much" is not allowed: must be a number from 0.01 to '
        "100; the pod is taken without it" in caplog.messages
    )


async def test_of_lists_that_come_fast_the_newest_is_taken() -> None:
    api = FakeApi()
    api.list()
    for number in range(300):
        api.tell("ADDED", f"pod-{number}", address=f"10.1.{number // 100}.{number % 100}")
    async with followed(api, most=1000) as following:
        await following.until({f"pod-{number}": False for number in range(300)})
