"""What is remembered of ids and answers stays within its bounds, and outlives no time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from balancer.proxy.sharing import Cache, Once

EVENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2000), st.floats(0, 3)), max_size=60)


@given(EVENTS, st.integers(0, 4000))
def test_a_cache_gives_only_what_is_young_and_keeps_no_more_than_it_may(
    events: list[tuple[int, int, float]], most_bytes: int
) -> None:
    cache: Cache[tuple[int, int]] = Cache(most_bytes)
    now_s, until_s = 0.0, dict.fromkeys(range(6), -1.0)
    for number, (key, size, pause_s) in enumerate(events):
        now_s += pause_s
        kept = cache.get(key, now_s)
        if kept is not None:
            assert kept[0] == key
            assert now_s < until_s[key]
        cache.put(key, (key, number), size, now_s + 2)
        until_s[key] = now_s + 2
        assert 0 <= cache.kept_bytes <= most_bytes
    assert cache.kept_bytes > 0 or len(cache) == 0


@given(EVENTS, st.integers(0, 4000), st.integers(2, 5))
def test_ids_are_known_until_their_time_and_are_never_too_many(
    events: list[tuple[int, int, float]], most_bytes: int, most_entries: int
) -> None:
    once: Once[str, int] = Once(most_entries, most_bytes)
    now_s, until_s = 0.0, {}
    for number, (name, size, pause_s) in enumerate(events):
        now_s += pause_s
        key, tenant = (name,), str(name % 2)
        entry = once.find(key, now_s)
        assert (entry is not None) == (until_s.get(key, -1.0) > now_s)
        if entry is None and once.has_room(tenant):
            once.begin(key, tenant, "running")
            assert once.find(key, now_s) is not None
            if size % 3:
                once.executed(key, number, size, now_s + 2)
                until_s[key] = now_s + 2
            else:
                once.not_executed(key)
        assert len(once) <= most_entries
        assert 0 <= once.kept_bytes <= most_bytes
    once.find(("none",), now_s + 10)
    assert len(once) == 0
    assert once.kept_bytes == 0
