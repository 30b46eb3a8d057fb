"""What was measured on real GPUs under concurrency, and how those servers were deployed.

The deployments are stated by the project that measured (NVIDIA/DeepLearningExamples, `*/triton/README.md`,
`*/triton/runner/config_*.yaml` and `pipeline_impl.py`); the online table itself does not carry them.
"""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass
from statistics import median

from simulator.service import OFFLINE, ONLINE, Table, table

_NORMAL_P99 = 2.326
METRICS = ("throughput", "mean", "p50", "p95", "p99")
"""Requests per second (rows in the table), then milliseconds as the client saw them."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Settings of a family of models that the measurements share."""

    max_batch_rows: int
    instances: int
    preferred_rows: tuple[int, ...]
    queue_delay_s: float
    early_batches: bool
    """The server is of the releases 21.07 to 21.12: two batches are formed ahead for each instance and do not grow."""
    bytes_per_row: int
    """Of the inputs; 0.85ms takes larger images."""


_IMAGE = 224 * 224 * 3 * 4
DEPLOYMENTS = {
    # Triton 21.12. Its batcher forms batches before an instance is free and leaves them as they are
    # (triton-inference-server/server issue 3624; pull request 3789 of January 2022 lets them grow).
    "GPUNet": Deployment(64, 2, (64,), 0.0, True, _IMAGE),
    "GPUNet-085ms": Deployment(64, 2, (64,), 0.0, True, 288 * 288 * 3 * 4),
    # Triton 22.11. 192 steps of three known values and the target.
    "TFT": Deployment(1024, 2, (512, 1024), 1e-6, False, 192 * 4 * 4),
    # Triton 22.02. 13 numbers and 13 categories.
    "WideAndDeep": Deployment(131072, 2, (131072,), 0.0, False, 26 * 4),
    # Triton 20.12, before batches were formed ahead.
    "ConvNets": Deployment(128, 2, (64, 128), 1e-6, False, _IMAGE),
}


@dataclass(frozen=True, slots=True)
class Observed:
    """One row of the online table."""

    concurrency: int
    values: tuple[float, ...]
    """In the order of `METRICS`, throughput in requests; NaN where the table has nothing."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One model on one GPU in one runtime."""

    table: Table
    """What was measured offline."""
    deployment: Deployment
    request_rows: int
    """Rows of a client's request."""
    noise_cv: float
    """Coefficient of variation of the offline latencies: their p99 over their mean, as if they were normal."""
    observed: tuple[Observed, ...]

    @property
    def family(self) -> str:
        """GPUNet, TFT, WideAndDeep or ConvNets."""
        return next(family for family in ("GPUNet", "TFT", "WideAndDeep", "ConvNets") if family in self.table.model)

    @property
    def runtime(self) -> str:
        """TensorRT, PyTorch, TensorFlow, ONNX Runtime or TF-TRT."""
        named = (("NVIDIA TensorRT", "TensorRT"), *((name, name) for name in ("PyTorch", "TF-TRT", "ONNX Runtime")))
        return next((name for text, name in named if text in self.table.setup), "TensorFlow")

    @property
    def name(self) -> str:
        """Short, for tables and plots."""
        model = self.table.model.split("-", 1)[1]
        data = self.table.setup.partition("Dataset: ")[2]
        return f"{model}{f' {data}' if data else ''}, {self.runtime}, {self.table.device}"


def setups() -> tuple[Setup, ...]:
    """All setups of the online table, in its order, each with its offline table."""
    with ONLINE.open(newline="") as file:
        groups = itertools.groupby(csv.DictReader(file), key=lambda row: (row["model"], row["setup"]))
        return tuple(_setup(table(model, setup), list(rows)) for (model, setup), rows in groups)


def _setup(offline: Table, rows: list[dict[str, str]]) -> Setup:
    family = next(name for name in reversed(DEPLOYMENTS) if name in offline.model)
    family = "GPUNet-085ms" if "GPUNet-085ms" in offline.model else family
    request_rows = int(rows[0]["batch"] or 1)
    return Setup(offline, DEPLOYMENTS[family], request_rows, _noise_cv(offline), tuple(_observed(row) for row in rows))


def _observed(row: dict[str, str]) -> Observed:
    columns = ("avg_ms", "p50_ms", "p95_ms", "p99_ms")
    per_request = float(row["inferences_per_s"]) / int(row["batch"] or 1)
    latencies = (float(row[column]) if row[column] else float("nan") for column in columns)
    return Observed(int(row["concurrency"]), (per_request, *latencies))


def _noise_cv(offline: Table) -> float:
    with OFFLINE.open(newline="") as file:
        own = [row for row in csv.DictReader(file) if (row["model"], row["setup"]) == (offline.model, offline.setup)]
    return max(0.0, median((float(row["p99_ms"]) / float(row["avg_ms"]) - 1) / _NORMAL_P99 for row in own))
