"""A share of a model's requests goes to another version, and returns where that does worse. Time is an argument."""

import re
from dataclasses import replace
from random import Random
from typing import Any

import grpc
import pytest
from support.fake_worker import echoed
from support.proxied import proxied, request
from tritonclient.grpc import service_pb2

from balancer.config.config import ConfigError, from_mapping
from balancer.kernel.settings import SplitSettings
from balancer.scheduler.canary.split import Split, Splits
from policies.base import Request

SETTINGS = SplitSettings(old="1", new="2", share=0.2)


def drive(
    split: Split, seconds: float, rate_per_s: float = 50, *, slower: float = 1.0, failing: float = 0.0, keys: int = 0
) -> float | None:
    """When it returned; requests take an exponential time, and 2% of the old version's fail."""
    rng, now_s = Random(7), 0.0
    while now_s < seconds:
        now_s += rng.expovariate(rate_per_s)
        draw = split.draw(rng.randrange(keys) if keys else None)
        latency_s = rng.expovariate(100) * (slower if draw.new else 1.0)
        good = rng.random() > 0.02 + (failing if draw.new else 0.0)
        split.ended(draw, latency_s, good, now_s)
        if split.returned:
            return now_s
    return None


def test_the_share_goes_to_the_new_version_and_keys_stay() -> None:
    split = Split(SETTINGS)
    draws = [split.draw(None).new for _ in range(20_000)]
    assert abs(sum(draws) / len(draws) - 0.2) < 0.01
    by_key = [{split.draw(key).new for _ in range(5)} for key in range(5000)]
    assert all(len(each) == 1 for each in by_key)
    assert abs(sum(True in each for each in by_key) / len(by_key) - 0.2) < 0.02


@pytest.mark.parametrize("seed", range(5))
def test_an_equal_version_goes_on(seed: int) -> None:
    assert drive(Split(SETTINGS, seed), 1800) is None


def test_a_slow_or_failing_version_returns_for_good_and_says_why() -> None:
    for worse in ({"slower": 3.0}, {"failing": 0.3}):
        split = Split(SETTINGS)
        at_s = drive(split, 1800, **worse)
        assert at_s is not None
        assert at_s < 600
        assert "of version 2" in split.returned
        assert split.share == 0
        assert not any(split.draw(None).new for _ in range(1000))


def test_a_key_is_one_bet_however_often_it_comes() -> None:
    split = Split(SETTINGS)
    assert [split.draw(3).bets for _ in range(3)] == [True, False, False]


def test_one_clients_key_that_fails_is_no_evidence_against_a_version() -> None:
    split = Split(SETTINGS)
    unlucky = next(key for key in range(100) if Split(SETTINGS).draw(key).new)
    for number in range(5000):
        draw = split.draw(unlucky)
        assert draw.new
        split.ended(draw, 0.01, False, number * 0.1)
    assert not split.returned


def test_many_keys_return_a_failing_version() -> None:
    assert drive(Split(SETTINGS), 1800, failing=0.5, keys=50_000) is not None


async def test_requests_that_name_no_version_get_one_and_a_failing_one_gets_no_more() -> None:
    async def second_fails(data: bytes, context: Any) -> bytes:
        if service_pb2.ModelInferRequest.FromString(data).model_version == "2":
            await context.abort(grpc.StatusCode.INTERNAL, "not yet")
        return echoed(data)

    models = {"m": {"split": {"old": 1, "new": 2, "share": 0.5}}}
    async with proxied(second_fails, models=models) as rig:
        split = rig.picker.splits.of["m"]
        split.comparison.evidence["errors"].limit = 50  # fewer seconds than an operator would wait for
        split.comparison.block_s = 0.0
        failed = 0
        for _ in range(400):
            try:
                await rig.infer(request())
            except grpc.aio.AioRpcError:
                failed += 1
            # Each is an observation of its own.
            split.comparison.block_s = 0.0
        assert split.returned
        assert failed < 100
        assert rig.metric("balancer_split_returned", model="m") == 1
        assert rig.metric("balancer_split_errors_total", model="m", version="2") == failed
        named = request()
        version = service_pb2.ModelInferRequest.FromString(named)
        version.model_version = "2"
        with pytest.raises(grpc.aio.AioRpcError, match="not yet"):
            await rig.infer(version.SerializeToString())
        versions = {service_pb2.ModelInferRequest.FromString(each).model_version for each in rig.worker.requests}
        assert versions == {"1", "2"}


def test_a_request_that_names_a_version_or_cannot_be_given_one_takes_no_part() -> None:
    splits = Splits()
    splits.configure({"m": SETTINGS})
    assert splits.draw(Request(model="other")) is None
    assert splits.draw(Request(model="m", version="3")) is None
    assert splits.draw(Request(model="m"), "compressed") is None
    assert splits.left == {("m", "compressed"): 1}
    draw = splits.draw(Request(model="m", key=7))
    assert draw is not None
    assert draw.version in {"1", "2"}


def test_a_split_keeps_what_it_knows_until_its_settings_change() -> None:
    splits, returned = Splits(), []
    splits.returned = returned.append
    splits.configure({"m": SETTINGS})
    old = splits.of["m"]
    drive(old, 1800, failing=0.3)
    splits.configure({"m": SETTINGS})
    assert splits.of["m"] is old
    draw = splits.draw(Request(model="m"))
    assert draw is not None
    splits.configure({"m": replace(SETTINGS, share=0.3)})
    assert not splits.of["m"].returned
    # What was drawn before counts there.
    splits.ended(draw, 0.01, True, 0.0)
    assert splits.of["m"].arms[False].requests == 0
    assert not returned


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ({"split": {"old": 1, "new": 1}}, "models.m.split.new"),
        ({"split": {"old": "v1", "new": 2}}, "models.m.split.old"),
        ({"split": {"old": 1, "new": "2/../3"}}, "models.m.split.new"),
        ({"split": {"old": 1, "new": 2}, "versions": [1]}, "models.m.split.new"),
        ({"split": {"old": 1, "new": 2}, "versions": [2]}, "models.m.split.old"),
    ],
)
def test_a_split_is_between_two_versions_that_may_be_served(model: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(field)):
        from_mapping({"models": {"m": model}})
