"""How long a real GPU was measured to be occupied by a batch: latency.csv, interpolated in the batch size."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TABLE = Path(__file__).with_name("latency.csv")


@dataclass(frozen=True)
class BatchLatency:
    """Measured points of one model on one GPU, by rising batch size."""

    batches: tuple[int, ...]
    times_s: tuple[float, ...]

    def time_s(self, batch: int) -> float:
        """Seconds of GPU time for a batch of so many rows.

        Linear between two measured batch sizes; past the largest, on the line through the last two, which is how a
        GPU that is full behaves.

        Raises:
            ValueError: if the batch is not at least 1.
        """
        if batch < 1:
            raise ValueError(f"batch={batch} is not a batch size; give 1 or more rows")
        if batch <= self.batches[-1]:
            return float(np.interp(batch, self.batches, self.times_s))
        slope = (self.times_s[-1] - self.times_s[-2]) / (self.batches[-1] - self.batches[-2])
        return self.times_s[-1] + slope * (batch - self.batches[-1])


def read_latency(model: str, gpu: str, table: Path = TABLE) -> BatchLatency:
    """Read the server's input, inference and output times of a model on a GPU, as the table spells both.

    Raises:
        ValueError: if nothing was measured for the pair; the message lists what was.
    """
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            time_ms = sum(float(row[f"compute_{part}_ms"]) for part in ("input", "infer", "output"))
            points.setdefault((row["model"], row["gpu"]), []).append((int(row["batch"]), time_ms / 1000))
    if (model, gpu) not in points:
        gpus = [known_gpu for known_model, known_gpu in points if known_model == model]
        if not gpus:
            models = ", ".join(sorted({known_model for known_model, _ in points}))
            raise ValueError(f"no latency was measured for measured_model={model}; choose one of: {models}")
        raise ValueError(f"no latency was measured for {model} on EMULATED_GPU={gpu}; choose one of: {', '.join(gpus)}")
    batches, times_s = zip(*sorted(points[model, gpu]), strict=True)
    return BatchLatency(batches, times_s)
