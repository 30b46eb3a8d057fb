"""Keeps an agent's reports within bounds: what balancers would refuse is left out or cut, and the log says so once."""

import logging
import math
from collections import Counter
from dataclasses import replace

from balancer import bounds
from balancer.scheduler.events import ModelReport

logger = logging.getLogger(__name__)


class ModelLimits:
    """What one agent's Triton says, as far as a report may carry it."""

    def __init__(self) -> None:
        self._logged_kinds: set[str] = set()

    def fit(self, models: tuple[ModelReport, ...]) -> tuple[ModelReport, ...]:
        """The models that a report may carry, each within bounds.

        Of too many batch sizes those stay that were executed most, of too many models and versions the first.
        """
        fitting = [self._fit(model) for model in models if self._has_a_name(model)]
        if len(fitting) > bounds.MAX_VERSIONS:
            fitting = self._few(fitting)
        sizes = sum(len(model.batches) for model in fitting)
        if sizes > bounds.MAX_REPORT_BATCH_SIZES:
            self._say("batch sizes of all models", sizes, bounds.MAX_REPORT_BATCH_SIZES)
            share = bounds.MAX_REPORT_BATCH_SIZES // len(fitting)
            fitting = [_with_batch_sizes(model, share) for model in fitting]
        return tuple(fitting)

    def _has_a_name(self, model: ModelReport) -> bool:
        try:
            bounds.text("model", model.model)
            bounds.text("version", model.version)
        except bounds.OutOfBoundsError:
            self._say("bytes in the name of a model or version", model.model, bounds.MAX_TEXT_BYTES)
            return False
        return bool(model.model)

    def _fit(self, model: ModelReport) -> ModelReport:
        if len(model.batches) > bounds.MAX_BATCH_SIZES:
            self._say(f"batch sizes of {model.model}", len(model.batches), bounds.MAX_BATCH_SIZES)
            model = _with_batch_sizes(model, bounds.MAX_BATCH_SIZES)
        if model.batches and not all(map(_is_in_bounds, model.batches)):
            self._say(f"rows, executions or seconds of a batch size of {model.model}", "one", bounds.MAX_ROWS)
            model = replace(model, batches=tuple(filter(_is_in_bounds, model.batches)))
        if model.max_batch_rows > bounds.MAX_ROWS or model.instances > bounds.MAX_INSTANCES:
            self._say(f"rows or instances of {model.model}", model.max_batch_rows, bounds.MAX_ROWS)
        return replace(
            model,
            pending=_cut(model.pending, bounds.MAX_PENDING),
            executing=_cut(model.executing, bounds.MAX_PENDING),
            succeeded=min(model.succeeded, bounds.MAX_COUNT),
            failed=min(model.failed, bounds.MAX_COUNT),
            max_batch_rows=min(model.max_batch_rows, bounds.MAX_ROWS),
            instances=min(model.instances, bounds.MAX_INSTANCES),
        )

    def _few(self, models: list[ModelReport]) -> list[ModelReport]:
        versions: Counter[str] = Counter()
        few = []
        for model in models:
            versions[model.model] += 1
            if versions[model.model] <= bounds.MAX_VERSIONS:
                few.append(model)
        if len(few) < len(models):
            self._say("versions of a model", max(versions.values()), bounds.MAX_VERSIONS)
        if len(few) > bounds.MAX_MODELS:
            self._say("models and versions", len(few), bounds.MAX_MODELS)
        return few[: bounds.MAX_MODELS]

    def _say(self, what: str, value: object, most: int) -> None:
        kind = what.split(" of ", maxsplit=1)[0]
        if kind not in self._logged_kinds:
            self._logged_kinds.add(kind)
            logger.warning(
                "reports leave out what is too much for them: %s: %s, and %d at most", what, bounds.shown(value), most
            )


def _cut(value: float, most: float) -> float:
    return min(max(value, 0.0), most) if math.isfinite(value) else 0.0


def _is_in_bounds(batch: tuple[int, int, float]) -> bool:
    rows, executions, compute_s = batch
    return (
        1 <= rows <= bounds.MAX_ROWS
        and 0 <= executions <= bounds.MAX_COUNT
        and 0.0 <= compute_s <= bounds.MAX_COMPUTE_S
    )


def _with_batch_sizes(model: ModelReport, most: int) -> ModelReport:
    kept = sorted(model.batches, key=lambda batch: -batch[1])[:most]
    return replace(model, batches=tuple(sorted(kept)))
