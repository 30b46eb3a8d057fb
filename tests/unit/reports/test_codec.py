import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from balancer.reports import report_pb2
from balancer.reports.codec import ReportDecoder, ReportEncoder
from balancer.scheduler.events import ModelReport, Report, SentPrompt

COUNTERS = st.integers(0, bounds.MAX_COUNT)
SINGLE = st.floats(0, bounds.MAX_PENDING, width=32)
BATCHES = st.lists(
    st.tuples(st.integers(1, bounds.MAX_ROWS), COUNTERS, st.floats(0, bounds.MAX_COMPUTE_S)),
    max_size=3,
    unique_by=lambda batch: batch[0],
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
        max_batch_rows=st.integers(1, bounds.MAX_ROWS),
        instances=st.integers(1, bounds.MAX_INSTANCES),
        batches=BATCHES,
    ),
    max_size=4,
    unique_by=lambda model: (model.model, model.version),
).map(tuple)
PROMPTS = st.lists(
    st.builds(
        SentPrompt,
        model=st.sampled_from(["a", "ünïcode"]),
        tokens=st.integers(100, 10**7).map(float),
        prefix=st.dictionaries(st.integers(1, 100), st.integers(0, 2**64 - 1), max_size=5).map(
            lambda hashes: tuple((hashes[tokens], float(tokens)) for tokens in sorted(hashes))
        ),
    ),
    max_size=3,
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
    draining=st.booleans(),
    peers_in_flight=st.one_of(
        st.none(),
        st.dictionaries(st.sampled_from(["a", "b", "ünïcode"]), st.integers(0, int(bounds.MAX_PENDING))).map(
            lambda counts: tuple(counts.items())
        ),
    ),
    peers_prompts=PROMPTS,
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


def test_unchanged_models_are_the_same_objects() -> None:
    encoder, decoder = ReportEncoder(), ReportDecoder()
    before = carry(encoder, decoder, busy(0))
    after = carry(encoder, decoder, busy(1, 7.0))
    assert after.models[0] is before.models[0]
    assert after.models[1].pending == 7.0


def message(**fields: Any) -> report_pb2.WorkerReport:
    defaults: dict[str, Any] = {"worker": "w", "incarnation": 1, "all_models": True}
    return report_pb2.WorkerReport(**(defaults | fields))


def in_flight(*models: str, requests: int = 1) -> report_pb2.PeersInFlight:
    return report_pb2.PeersInFlight(in_flight=[report_pb2.InFlight(model=model, requests=requests) for model in models])


def model(**fields: Any) -> report_pb2.ModelReport:
    defaults: dict[str, Any] = {"model": "m", "version": "1"}
    return report_pb2.ModelReport(**(defaults | fields))


LONG = "n" * (bounds.MAX_TEXT_BYTES + 1)
WIDE = "\u20ac" * (bounds.MAX_TEXT_BYTES // 3 + 1)
BATCH = report_pb2.BatchStatistics


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("worker", message(worker="")),
        ("worker", message(worker=LONG)),
        ("all_models", message(all_models=False)),
        ("incarnation", message(incarnation=bounds.MAX_COUNT + 1)),
        ("number", message(number=bounds.MAX_COUNT + 1)),
        ("balancers", message(balancers=bounds.MAX_BALANCERS + 1)),
        ("device", message(device=LONG)),
        ("memory_bytes", message(memory_bytes=2**64 - 1)),
        ("memory_used_bytes", message(memory_used_bytes=2**64 - 1)),
        ("utilisation", message(utilisation=1.5)),
        ("utilisation", message(utilisation=math.nan)),
        ("peers.in_flight", message(peers=in_flight(*(str(i) for i in range(bounds.MAX_MODELS_IN_FLIGHT + 1))))),
        ("peers.in_flight.model", message(peers=in_flight(LONG))),
        ("peers.in_flight.requests", message(peers=in_flight("a", requests=2**32 - 1))),
        ("models", message(models=[model(model=str(i)) for i in range(bounds.MAX_MODELS + 1)])),
        ("models", message(models=[model() for _ in range(bounds.MAX_MODELS + 1)])),
        ("models.version", message(models=[model(version=str(i)) for i in range(bounds.MAX_VERSIONS + 1)])),
        ("models.model", message(models=[model(model="")])),
        ("models.model", message(models=[model(model=WIDE)])),
        ("models.version", message(models=[model(version=LONG)])),
        ("models.pending", message(models=[model(pending=-1)])),
        ("models.pending", message(models=[model(pending=math.nan)])),
        ("models.pending", message(models=[model(pending=1e30)])),
        ("models.executing", message(models=[model(executing=math.inf)])),
        ("models.succeeded", message(models=[model(succeeded=2**64 - 1)])),
        ("models.failed", message(models=[model(failed=2**64 - 1)])),
        ("models.max_batch_rows", message(models=[model(max_batch_rows=2**32 - 1)])),
        ("models.instances", message(models=[model(instances=2**32 - 1)])),
        ("models.batches.rows", message(models=[model(batches=[BATCH(rows=0)])])),
        ("models.batches.rows", message(models=[model(batches=[BATCH(rows=2**32 - 1)])])),
        ("models.batches.executions", message(models=[model(batches=[BATCH(rows=1, executions=2**64 - 1)])])),
        ("models.batches.compute_s", message(models=[model(batches=[BATCH(rows=1, compute_s=-1)])])),
        ("models.batches.compute_s", message(models=[model(batches=[BATCH(rows=1, compute_s=math.inf)])])),
        (
            "models.batches",
            message(models=[model(batches=[BATCH(rows=i + 1) for i in range(bounds.MAX_BATCH_SIZES + 1)])]),
        ),
        (
            "models.batches",
            message(
                models=[
                    model(model=str(i), batches=[BATCH(rows=1 + row) for row in range(bounds.MAX_BATCH_SIZES)])
                    for i in range(bounds.MAX_REPORT_BATCH_SIZES // bounds.MAX_BATCH_SIZES + 1)
                ]
            ),
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_names_the_field(field: str, bad: report_pb2.WorkerReport) -> None:
    decoder = ReportDecoder()
    with pytest.raises(OutOfBoundsError, match=rf"^{field}: .* is refused; it .+") as refused:
        decoder.decode(bad)
    assert refused.value.field == field
    assert len(str(refused.value)) < 600
    # As before: the next stream's first report is as good as any.
    assert decoder.decode(message(worker="another")).models == ()


def test_models_that_come_one_by_one_are_bounded_too() -> None:
    decoder = ReportDecoder()
    decoder.decode(message(models=[model(model=str(i)) for i in range(bounds.MAX_MODELS)]))
    with pytest.raises(OutOfBoundsError, match=r"^models: .*1025 entries"):
        decoder.decode(message(all_models=False, models=[model(model="one more")]))


def largest() -> Report:
    """Of all that are within bounds."""
    sizes = bounds.MAX_REPORT_BATCH_SIZES // bounds.MAX_MODELS
    count, name = bounds.MAX_COUNT, "n" * (bounds.MAX_TEXT_BYTES - 4)
    batches = tuple((bounds.MAX_ROWS - row, count, 1e12) for row in range(sizes))
    models = tuple(
        ModelReport(f"{name}{i:04}", name, True, 1e9, 1e9, count, count, bounds.MAX_ROWS, bounds.MAX_INSTANCES, batches)
        for i in range(bounds.MAX_MODELS)
    )
    worker = "w" * bounds.MAX_TEXT_BYTES
    peers = tuple((f"{name}{i:04}", int(bounds.MAX_PENDING)) for i in range(bounds.MAX_MODELS_IN_FLIGHT))
    known = (models, bounds.MAX_BALANCERS, worker, count, count, 0.5)
    prefix = tuple((2**64 - 1, bounds.MAX_PROMPT_TOKENS - i) for i in reversed(range(MOST_CHECKPOINTS)))
    prompts = (SentPrompt(f"{name}0000", bounds.MAX_PROMPT_TOKENS, prefix),) * bounds.MAX_PROMPTS_TOLD
    told = {"peers_in_flight": peers, "peers_waiting_tokens": bounds.MAX_WAITING_TOKENS, "peers_prompts": prompts}
    return Report(worker, count, count, True, *known, draining=True, **told)


def test_the_largest_report_within_bounds_is_taken_and_fits_the_limit_of_a_message() -> None:
    report = largest()
    message = ReportEncoder().encode(report)
    assert message.ByteSize() <= bounds.MAX_REPORT_BYTES
    assert comparable(ReportDecoder().decode(message)) == comparable(report)


def test_a_stream_speaks_of_one_worker() -> None:
    decoder = ReportDecoder()
    decoder.decode(message())
    with pytest.raises(OutOfBoundsError, match="worker: 'other' is refused; it stays 'w' on this stream"):
        decoder.decode(message(worker="other"))


def test_a_new_incarnation_starts_with_everything() -> None:
    decoder = ReportDecoder()
    decoder.decode(message(models=[model(batches=[report_pb2.BatchStatistics(rows=1, executions=9, compute_s=1)])]))
    with pytest.raises(OutOfBoundsError, match="all_models: False"):
        decoder.decode(message(incarnation=2, all_models=False))
    assert decoder.decode(message(incarnation=2, models=[model()])).models[0].batches == ()
