import logging
import math

import pytest

from balancer import bounds
from balancer.agent.limits import ModelLimits
from balancer.reports.codec import ReportDecoder, ReportEncoder
from balancer.scheduler.events import ModelReport, Report

SIZES = tuple((rows, rows, 1.0) for rows in range(1, 3000))
LONG = "n" * (bounds.MAX_TEXT_BYTES + 1)


def model(name: str = "m", version: str = "1", **fields: object) -> ModelReport:
    return ModelReport(name, version, ready=True, **fields)  # type: ignore[arg-type]  # of the test's making


@pytest.mark.parametrize(
    "models",
    [
        tuple(model(str(i)) for i in range(2 * bounds.MAX_MODELS)),
        tuple(model(version=str(i)) for i in range(2 * bounds.MAX_VERSIONS)),
        (model(batches=SIZES),),
        tuple(model(str(i), batches=SIZES) for i in range(20)),
        tuple(model(str(i), batches=SIZES[:100]) for i in range(bounds.MAX_MODELS)),
        (model(LONG), model(version=LONG), model("")),
        (model(pending=math.inf, executing=math.nan), model("n", pending=1e30, succeeded=2**60, failed=2**60)),
        (model(max_batch_rows=2**31, instances=2**31, batches=((2**31, 1, 1.0), (0, 1, 1.0), (4, 1, math.inf))),),
    ],
    ids=["models", "versions", "sizes", "sizes of all", "many sizes of many", "names", "numbers", "shapes"],
)
def test_what_an_agent_reports_is_always_within_bounds(
    models: tuple[ModelReport, ...], caplog: pytest.LogCaptureFixture
) -> None:
    limits = ModelLimits()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fitting = limits.fit(models)
    report = Report("w", 1, 0, ready=True, models=fitting)
    message = ReportEncoder().encode(report)
    assert ReportDecoder().decode(message).models == fitting
    assert message.ByteSize() <= bounds.MAX_REPORT_BYTES
    # Said, and once.
    assert len(caplog.messages) == len(set(caplog.messages)) <= 2


def test_what_is_within_bounds_stays_as_it_is() -> None:
    models = tuple(model(str(i), pending=1.5, batches=SIZES[:8]) for i in range(bounds.MAX_MODELS))
    assert ModelLimits().fit(models) == models


def test_the_batch_sizes_that_were_executed_most_stay() -> None:
    (fitting,) = ModelLimits().fit((model(batches=SIZES),))
    assert fitting.batches == SIZES[-bounds.MAX_BATCH_SIZES :]
