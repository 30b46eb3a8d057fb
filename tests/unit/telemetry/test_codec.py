import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.core.events import ModelReport, Report
from balancer.telemetry import report_pb2
from balancer.telemetry.codec import InvalidReportError, ReportDecoder, ReportEncoder

COUNTERS = st.integers(0, 2**63)
SINGLE = st.floats(0, 2.0**100, width=32)
BATCHES = st.lists(
    st.tuples(st.integers(1, 2**31), COUNTERS, st.floats(0, 1e12)), max_size=3, unique_by=lambda batch: batch[0]
).map(tuple)
MODELS = st.lists(
    st.builds(
        ModelReport,
        model=st.sampled_from(["a", "b", "ünïcode"]),
        version=st.sampled_from(["1", "2"]),
        ready=st.booleans(),
        pending=SINGLE,
        executing=SINGLE,
        succeeded=COUNTERS,
        failed=COUNTERS,
        max_batch_rows=st.integers(1, 2**31),
        instances=st.integers(1, 2**31),
        batches=BATCHES,
    ),
    max_size=4,
    unique_by=lambda model: (model.model, model.version),
).map(tuple)
REPORTS = st.builds(
    Report,
    worker=st.just("worker"),
    incarnation=st.integers(0, 2),
    number=st.integers(0, 5),
    ready=st.booleans(),
    models=MODELS,
    balancers=st.integers(1, 9),
    device=st.sampled_from(["", "A100"]),
    memory_bytes=COUNTERS,
    memory_used_bytes=COUNTERS,
    utilisation=st.one_of(st.just(math.nan), st.floats(0, 1, width=32)),
)


def comparable(report: Report) -> tuple[object, ...]:
    """Models compare as a set, which they are, and an unknown utilisation equals itself, which NaN does not."""
    models = frozenset(report.models)
    return models, dataclasses.replace(report, models=(), utilisation=0.0), repr(report.utilisation)


def carry(encoder: ReportEncoder, decoder: ReportDecoder, report: Report) -> Report:
    return decoder.decode(report_pb2.WorkerReport.FromString(encoder.encode(report).SerializeToString()))


@given(st.lists(REPORTS, max_size=8))
def test_a_stream_carries_any_reports_unchanged(reports: list[Report]) -> None:
    """Any, so also those that follow lost, repeated and reordered ones: what was never encoded leaves no gap."""
    encoder, decoder = ReportEncoder(), ReportDecoder()
    for report in reports:
        assert comparable(carry(encoder, decoder, report)) == comparable(report)


def busy(number: int, pending: float = 0.0, batches: tuple[tuple[int, int, float], ...] = ((1, 2, 0.5),)) -> Report:
    idle = ModelReport("idle", "1", ready=True, batches=((1, 1, 0.1),))
    return Report(
        "w", 1, number, ready=True, models=(idle, ModelReport("m", "1", ready=True, pending=pending, batches=batches))
    )


def test_only_what_changed_crosses_a_stream() -> None:
    encoder = ReportEncoder()
    first, second, third, fourth = (
        encoder.encode(report) for report in (busy(0), busy(1), busy(2, 3.0), busy(3, 3.0, ((1, 4, 1.0),)))
    )
    assert first.all_models
    assert len(first.models) == 2
    assert not second.all_models
    assert len(second.models) == 0
    assert [(model.model, len(model.batches)) for model in third.models] == [("m", 0)]
    assert [(model.model, len(model.batches)) for model in fourth.models] == [("m", 1)]


def test_a_new_stream_starts_with_everything() -> None:
    ReportEncoder().encode(busy(0))
    again = ReportEncoder().encode(busy(1))
    assert again.all_models
    assert comparable(ReportDecoder().decode(again)) == comparable(busy(1))


def test_unchanged_models_are_the_same_objects() -> None:
    encoder, decoder = ReportEncoder(), ReportDecoder()
    before = carry(encoder, decoder, busy(0))
    after = carry(encoder, decoder, busy(1, 7.0))
    assert after.models[0] is before.models[0]
    assert after.models[1].pending == 7.0


def message(**fields: Any) -> report_pb2.WorkerReport:
    defaults: dict[str, Any] = {"worker": "w", "incarnation": 1, "all_models": True}
    return report_pb2.WorkerReport(**(defaults | fields))


def model(**fields: Any) -> report_pb2.ModelReport:
    defaults: dict[str, Any] = {"model": "m", "version": "1"}
    return report_pb2.ModelReport(**(defaults | fields))


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (message(worker=""), r"field worker: is empty; start the agent with"),
        (message(all_models=False), r"field all_models: false in the first report"),
        (message(utilisation=1.5), r"field utilisation: is 1\.5"),
        (message(utilisation=math.nan), r"field utilisation: is nan"),
        (message(models=[model(model="")]), r"field models\.model: is empty"),
        (message(models=[model(pending=-1)]), r"field models\.pending of 'm': is -1"),
        (message(models=[model(pending=math.nan)]), r"field models\.pending of 'm': is nan"),
        (message(models=[model(executing=math.inf)]), r"field models\.executing of 'm': is inf"),
        (
            message(models=[model(batches=[report_pb2.BatchStatistics(rows=0)])]),
            r"field models\.batches\.rows of 'm': is 0",
        ),
        (
            message(models=[model(batches=[report_pb2.BatchStatistics(rows=1, compute_s=-1)])]),
            r"field models\.batches\.compute_s of 'm': is -1",
        ),
    ],
)
def test_what_breaks_the_rules_is_refused_and_names_the_field(bad: report_pb2.WorkerReport, expected: str) -> None:
    with pytest.raises(InvalidReportError, match=expected):
        ReportDecoder().decode(bad)


def test_a_stream_speaks_of_one_worker() -> None:
    decoder = ReportDecoder()
    decoder.decode(message())
    with pytest.raises(InvalidReportError, match="field worker: is 'other' on a stream of 'w'"):
        decoder.decode(message(worker="other"))


def test_a_new_incarnation_starts_with_everything() -> None:
    decoder = ReportDecoder()
    decoder.decode(message(models=[model(batches=[report_pb2.BatchStatistics(rows=1, executions=9, compute_s=1)])]))
    with pytest.raises(InvalidReportError, match="field all_models"):
        decoder.decode(message(incarnation=2, all_models=False))
    assert decoder.decode(message(incarnation=2, models=[model()])).models[0].batches == ()
