"""How far predictions are from measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.gpu_fidelity.predict import ASSUMED, CHOSEN_ON, Assumptions, predict
from experiments.gpu_fidelity.setups import Setup
from policies.base import FloatArray

UNPREDICTABLE = "ConvNets"
"""Its offline table has only a sum, most of which is a single client's transfer over HTTP; see docs/fidelity/gpu.md."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A setup; arrays of shape `(concurrencies, metrics)`, in the order and units of `METRICS`."""

    setup: Setup
    measured: FloatArray
    predicted: FloatArray

    @property
    def errors(self) -> FloatArray:
        """Predicted over measured, minus 1; NaN where nothing was measured."""
        relative: FloatArray = self.predicted / self.measured - 1
        return relative


def compare(setup: Setup, every: int = 1, assumed: Assumptions = ASSUMED) -> Comparison:
    """Predict a setup at every so-manieth of its concurrencies."""
    rows = setup.observed[::every]
    predicted = predict(setup, tuple(row.concurrency for row in rows), assumed)
    return Comparison(setup, np.array([row.values for row in rows]), predicted)


def summary(comparisons: Iterable[Comparison]) -> tuple[FloatArray, FloatArray]:
    """Median and 90th percentile of the absolute relative error, `(metrics,)` each, over all rows."""
    absolute = np.abs(np.concatenate([each.errors for each in comparisons]))
    return np.nanmedian(absolute, axis=0), np.nanpercentile(absolute, 90, axis=0)


def groups(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """The whole and the parts that the report sums up, by heading."""
    predictable = [each for each in comparisons if each.setup.family != UNPREDICTABLE]
    found = {
        "all setups": list(comparisons),
        f"all but {UNPREDICTABLE}": predictable,
        "constants chosen on: V100, A30": [each for each in predictable if each.setup.table.device in CHOSEN_ON],
        "constants not chosen on: A100, T4": [each for each in predictable if each.setup.table.device not in CHOSEN_ON],
    }
    for family in dict.fromkeys(each.setup.family for each in comparisons):
        for runtime in dict.fromkeys(each.setup.runtime for each in comparisons if each.setup.family == family):
            chosen = [each for each in comparisons if (each.setup.family, each.setup.runtime) == (family, runtime)]
            found[f"{family}, {runtime}"] = chosen
    return {heading: part for heading, part in found.items() if part}


VARIATIONS = {
    "as it is": ASSUMED,
    "no rounding up in TensorRT": replace(ASSUMED, rounds_up=frozenset()),
    "TensorRT copies inputs beside the execution": replace(ASSUMED, copies_on_stream=frozenset({"ONNX Runtime"})),
    "no batches formed ahead in Triton 21.12": replace(ASSUMED, batches_ahead=0),
    "ONNX Runtime shares evenly": replace(ASSUMED, onnx_interference=1.0),
    "transfers take no time": replace(ASSUMED, transfer_bytes_per_s=math.inf),
    "nothing random in a client's turn": replace(ASSUMED, jitter_share=0.0),
    "a client's turn all random": replace(ASSUMED, jitter_share=1.0),
    "none of the constants": replace(ASSUMED, onnx_interference=1.0, transfer_bytes_per_s=math.inf),
}
"""What is decided, and the same with one decision left out."""


def worth(setups: Iterable[Setup], every: int = 4) -> dict[str, FloatArray]:
    """Median absolute errors under each of the variations, `(metrics,)`, over what can be predicted."""
    chosen = [setup for setup in setups if setup.family != UNPREDICTABLE]
    return {
        name: summary(compare(setup, every, assumed) for setup in chosen)[0] for name, assumed in VARIATIONS.items()
    }
