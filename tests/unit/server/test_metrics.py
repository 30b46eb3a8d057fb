"""What is scraped: bounded, made seldom and in slices, and of the form that Prometheus wants."""

import asyncio
import gzip
import math
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as strict
from prometheus_client.parser import text_string_to_metric_families
from support.exposition import samples
from support.fleets import make_router, model, report

from balancer.config.learning import Learned
from balancer.extproc.endpoints import Ads
from balancer.files.yaml_document import ConfigError
from balancer.reports.intake import ReportCounts
from balancer.scheduler.events import WorkerRemoved
from balancer.scheduler.router import Router
from balancer.scheduler.snapshot import snapshot
from balancer.server.metrics import Metrics, series
from balancer.server.metrics.series import SLICE_SAMPLES, Counters, Histograms
from policies.base import Request

MODELS = tuple(model(f"m{number}") for number in range(20))


@dataclass
class FakeState:
    hash: str = "0123456789ab"
    loaded_at_s: float = 1.7e9
    last_error: Exception | None = None
    learned: Learned | None = None


@dataclass
class FakeCertificate:
    expires_s: float | None


def large(workers: int = 64) -> tuple[Router, Metrics]:
    """A fleet with traffic of every model at every worker."""
    router = make_router(workers, models=MODELS)
    metrics = Metrics(router, lambda: 0.0)
    for worker in router.fleet.names:
        for loaded in MODELS:
            metrics.requests_of(loaded.model, worker, "grpc_0").inc()
            metrics.latency_of(loaded.model, worker).observe(0.015)
    return router, metrics


def whole(metrics: Metrics, state: FakeState | None = None) -> Metrics:
    """With something in every family."""
    certificates = {"envoy": FakeCertificate(1.8e9), "admin": FakeCertificate(None)}
    counts = ReportCounts(streams=3, questions=5, silent=1, invalid=2, refused=3, taken_over=4)
    metrics.watch(counts, Ads(), state or FakeState(), certificates)
    metrics.errors_of("m0", "w0").inc()
    for counter, labels in (
        (metrics.decisions, ("p",)),
        (metrics.refusals, ("shed",)),
        (metrics.fallbacks, ("no_pick",)),
        (metrics.handler_errors, ("admin",)),
        (metrics.refused_inputs, ("explain", "rows")),
        (metrics.admin_closed, ("full",)),
        (metrics.config_loads, ("applied",)),
        (metrics.decision_log_lines, ("written",)),
        (metrics.guard_breaches, ("p", "slow")),
        (metrics.rollout_returns, ("p", "slow")),
    ):
        counter.labels(*labels).inc()
    metrics.loop_lag.observe(0.003)
    metrics.decision_duration.observe(0.0001)
    return metrics


def test_promtool_finds_nothing_to_complain_of() -> None:
    text = whole(large(8)[1]).exposition()
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    # Of promtool's rules those that can be broken here: it is not installed everywhere.
    for name, family in families.items():
        assert family.documentation, name
        assert re.fullmatch(r"(balancer|process|gen_ai)_[a-z_]+", name)
        assert not re.search(r"_(ms|us|ns|milliseconds|minutes|hours|percent|kb|mb)(_|$)", name)
        if family.samples:
            assert (family.type == "counter") == all(sample.name == f"{name}_total" for sample in family.samples)
        if family.type == "histogram":
            for sample in family.samples:
                if sample.name.endswith("_bucket") and sample.labels["le"] == "+Inf":
                    assert sample.value >= 1


def test_open_metrics_say_the_same_and_an_exemplar() -> None:
    metrics = whole(large(8)[1])
    metrics.exemplify("m0", "w0", 0.0151, "ab" * 16)
    metrics.exemplify("m0", "w0", 0.016, "cd" * 16)
    metrics.exemplify("m0", "w0", 99.0, "ef" * 16)
    # This parser refuses families and samples out of order, names that do not fit their types, and a missing end.
    families = list(strict.text_string_to_metric_families(metrics.exposition(open_metrics=True).decode()))
    found = [sample for family in families for sample in family.samples]
    plain = text_string_to_metric_families(metrics.exposition().decode())
    # What time it is, and what the process needs, changes.
    passing = ("process_", "balancer_metrics_timestamp")

    def values(samples: list[Any]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (each.name, frozenset(each.labels.items())): each.value
            for each in samples
            if not each.name.startswith(passing)
        }

    assert values(found) == values([sample for family in plain for sample in family.samples])
    exemplars = {each.labels["le"]: each.exemplar for each in found if each.exemplar}
    assert {le: exemplar.labels for le, exemplar in exemplars.items()} == {
        "0.02": {"trace_id": "cd" * 16},
        "+Inf": {"trace_id": "ef" * 16},
    }
    assert exemplars["0.02"].value == 0.016
    assert float(exemplars["0.02"].timestamp) == pytest.approx(time.time(), abs=60)
    assert " # {" not in metrics.exposition().decode()


@given(st.lists(st.sampled_from((0.0, 0.5, 1.0, 1.5, 2.0, 9.0, math.nan)), max_size=100))
def test_many_are_counted_as_one_by_one(values: list[float]) -> None:
    family = Histograms("h", "about", (1.0, 2.0), "x")
    one_by_one, together = family.labels("a"), family.labels("b")
    for value in values:
        if not math.isnan(value):
            one_by_one.observe(value)
    together.observe_all(values)
    assert together.counts == one_by_one.counts
    assert together.sum == pytest.approx(one_by_one.sum)


def test_a_name_that_looks_like_a_line_stays_a_name() -> None:
    names = ['a"} 1\nb{x="', "\\", "\n", "ä\u2028", "}", ""]
    family = Counters("c", "about", "x")
    for name in names:
        family.labels(name).inc()
    (parsed,) = text_string_to_metric_families("".join(family.text()))
    assert [sample.labels["x"] for sample in parsed.samples] == names


def test_made_up_statuses_models_and_workers_add_no_series() -> None:
    _, metrics = large(2)
    before = len(metrics.requests)
    for number in range(100_000):
        metrics.requests_of("m0", "w0", f"grpc_{17 + number}").inc()
        metrics.requests_of("m0", "w0", f"http_{1000 + number}").inc()
    assert len(metrics.requests) == before + 2
    assert samples(metrics, "balancer_requests_total")["m0", "grpc_other", "w0"] == 100_000
    for number in range(1000):
        metrics.requests_of(f"model {number}", f"worker {number}", "http_200").inc()
        metrics.latency_of(f"model {number}", f"worker {number}").observe(1)
        metrics.errors_of(f"model {number}", f"worker {number}").inc()
    assert len(metrics.requests) == before + 3
    assert len(metrics.latency) == 2 * 20 + 1
    assert len(metrics.errors) == 1


def test_a_family_has_a_most_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_SERIES", 10)
    family = Counters("c", "about", "x", "y")
    for number in range(1000):
        family.labels(str(number), "y").inc()
    assert len(family) == 11
    assert family.labels("other", "other").value == 990


def test_series_of_workers_and_models_that_are_gone_are_dropped() -> None:
    router, metrics = large(3)

    def values(label: int, family: Any) -> set[str]:
        return {values[label] for values, _ in family.series()}

    router.observe(WorkerRemoved("w1"), 0.0)
    metrics.forget_gone()
    assert values(1, metrics.requests) == {"w0", "w2"}
    # Outcomes that come late make no new ones.
    metrics.requests_of("m0", "w1", "grpc_0").inc()
    metrics.latency_of("m0", "w1").observe(0.1)
    assert values(1, metrics.latency) == {"w0", "w2", "other"}
    # The scrape looks itself.
    del router.fleet.models["m4"]
    router.observe(WorkerRemoved("w2"), 0.0)
    metrics.exposition()
    assert values(1, metrics.latency) == {"w0", "other"}
    assert "m4" not in values(0, metrics.latency)


def test_gauges_of_workers_are_what_the_policy_sees() -> None:
    router = make_router(2)
    metrics = Metrics(router, lambda: 0.5)
    router.observe(report("w1", number=2, draining=True), 0.25)
    for _ in range(3):
        router.route(Request("m"), 0.5, subset=["w0"])
    assert samples(metrics, "balancer_worker_in_flight") == {("w0",): 3, ("w1",): 0}
    assert samples(metrics, "balancer_worker_backlog_seconds")["w0",] > 0
    assert samples(metrics, "balancer_worker_backlog_seconds")["w1",] == 0
    assert samples(metrics, "balancer_worker_ready") == {("w0",): 1, ("w1",): 0}
    assert samples(metrics, "balancer_worker_memory_share") == {}
    assert samples(metrics, "balancer_worker_report_age_seconds") == {("w0",): 0.5, ("w1",): 0.25}


def test_a_worker_that_is_silent_is_not_ready() -> None:
    router = make_router(2)
    router.observe(report("w1", number=2), 1.0)
    for now_s, w0 in ((0.9, True), (1.1, False)):
        metrics = Metrics(router, lambda at_s=now_s: at_s)
        assert samples(metrics, "balancer_worker_ready") == {("w0",): w0, ("w1",): True}
        assert [each["ready"] for each in snapshot(router, now_s)] == [w0, True]


def test_what_is_watched_is_shown() -> None:
    state = FakeState()
    metrics = whole(large(1)[1], state)
    assert samples(metrics, "balancer_report_streams") == {(): 3}
    assert samples(metrics, "balancer_report_questions_total") == {(): 5}
    assert samples(metrics, "balancer_report_streams_ended_total") == {
        ("silent",): 1,
        ("invalid",): 2,
        ("refused",): 3,
        ("taken_over",): 4,
    }
    assert samples(metrics, "balancer_envoys_connected") == {(): 0}
    assert samples(metrics, "balancer_envoy_nacks_total") == {(): 0}
    assert samples(metrics, "balancer_config_info") == {("0123456789ab",): 1}
    assert samples(metrics, "balancer_config_loaded_timestamp_seconds") == {(): 1.7e9}
    assert samples(metrics, "balancer_config_refused") == {(): 0}
    state.last_error = ConfigError([])
    assert samples(metrics, "balancer_config_refused") == {(): 1}
    assert len(samples(metrics, "balancer_build_info")) == 1
    assert samples(metrics, "balancer_certificate_expiry_timestamp_seconds") == {("envoy",): 1.8e9}


async def test_many_scrapes_at_once_are_one_text_and_the_next_second_another() -> None:
    router, metrics = large(2)
    now_s = 5.0
    metrics = Metrics(router, lambda: now_s)
    texts = await asyncio.gather(*(metrics.latest() for _ in range(100)))
    assert all(text is texts[0] for text in texts)
    now_s += 0.9
    assert await metrics.latest() is texts[0]
    now_s += 0.2
    assert await metrics.latest() is not texts[0]


async def test_requests_are_served_between_the_slices_of_a_text() -> None:
    _, metrics = large()
    turns = 0

    async def serve() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    serving = asyncio.create_task(serve())
    text, gzipped = await metrics.latest()
    serving.cancel()
    assert turns >= len(text.splitlines()) / SLICE_SAMPLES
    assert gzip.decompress(gzipped) == text
    assert len(gzipped) < len(text) / 10
    assert len(text.splitlines()) == len(metrics.exposition().splitlines()) > 64 * 20 * 17


async def test_who_asked_first_may_leave() -> None:
    _, metrics = large(2)
    first = asyncio.create_task(metrics.latest())
    await asyncio.sleep(0)
    second = asyncio.create_task(metrics.latest())
    await asyncio.sleep(0)
    first.cancel()
    assert b"balancer_build_info" in (await second).plain
