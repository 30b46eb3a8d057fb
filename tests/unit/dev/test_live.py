"""The live line of `balancer up`."""

from typing import Any

from balancer.stack.live_line import words_of


def recent(**further: Any) -> dict[str, Any]:
    """As a process without traffic has it."""
    said = {"rate_per_s": 0.0, "errors": 0, "p50_s": None, "p99_s": None}
    return {**said, "policy": "wlpr", "config_refused": None, "splits": [], **further}


def split(model: str, old: tuple[int, int], new: tuple[int, int], returned: str = "") -> dict[str, Any]:
    """Requests and errors of versions 1 and 2."""
    counts = [{"version": v, "requests": n, "errors": bad} for v, (n, bad) in (("1", old), ("2", new))]
    return {"model": model, "versions": counts, "returned": returned}


def test_processes_are_added_and_the_slowest_of_them_is_shown() -> None:
    said = recent(rate_per_s=10.0, errors=1, p50_s=0.002, p99_s=0.003), recent(rate_per_s=5.5, p50_s=0.001, p99_s=0.009)
    assert words_of(said) == "    15.5 requests/s   p50 2.0 ms   p99 9.0 ms   errors 1   policy wlpr"
    assert words_of([recent()]) == "     0.0 requests/s   errors 0   policy wlpr"


def test_a_config_that_is_refused_is_told() -> None:
    assert words_of([recent(config_refused=["a", "b"])]).endswith("\nconfig refused, the last good one stays: a; b")


def test_what_failed_of_a_split_is_told_by_version_and_nothing_where_nothing_did() -> None:
    assert "\n" not in words_of([recent(splits=[split("m", (90, 0), (10, 0))])])
    both = [recent(splits=[split("m", (90, 0), (10, 4))]), recent(splits=[split("m", (80, 1), (30, 3))])]
    assert words_of(both).splitlines()[1:] == [
        "split m: 1 of 170 requests of version 1 failed, 7 of 40 requests of version 2 failed"
    ]


def test_a_split_that_returned_is_told() -> None:
    said = recent(
        splits=[split("m", (90, 0), (10, 10), "100.0% of 10 requests ..."), split("n", (1, 0), (1, 0), "slow")]
    )
    assert words_of([said]).splitlines()[1:] == [
        "split m: 10 of 10 requests of version 2 failed, all go to version 1 again",
        "split n: all go to version 1 again",
    ]
