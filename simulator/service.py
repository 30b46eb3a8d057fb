"""Service times from measurements: NVIDIA's tables of real GPUs, profiles of live servers, samples.

The tables are `data/triton_latency_offline.csv`: one client, so an execution is one request of `batch` rows. What is in
them, and what to beware of, is in `data/README.md`.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import isotonic_regression

from balancer.config.profile_file import Profile
from policies.base import FloatArray
from simulator.spec import ServiceTime

OFFLINE = Path(__file__).parent / "data" / "triton_latency_offline.csv"
ONLINE = Path(__file__).parent / "data" / "triton_latency_online.csv"
"""The same setups under concurrency, with the columns of the other; for predictions, never for fits."""

PARTS = ("client_send", "network", "server_queue", "compute_input", "compute_infer", "compute_output", "client_recv")
_DEVICE = re.compile(r"\b(A100|A30|A40|V100|T4)\b")


@dataclass(frozen=True, slots=True)
class Table:
    """One model in one setup; a number for each batch size in `rows`, empty where the source has none."""

    model: str
    """As the source names it, such as `LanguageModeling-BERT-large`."""
    setup: str
    """GPU, runtime, precision, data set."""
    device: str
    """A100, A30, A40, V100 or T4; of another table, else, what stands before the first comma of `setup`."""
    max_batch_rows: int
    """As the source states it; 0: it does not."""
    instances: int
    rows: tuple[int, ...]
    mean_s: tuple[float, ...]
    parts_s: Mapping[str, tuple[float, ...]]
    """Of that, by `PARTS`: `network` has the server's handling of the request in it, `server_queue` is the scheduler's
    time alone, as nobody is ahead of one client, and in `compute_output` the PyTorch backend waits for the device."""

    @property
    def service(self) -> ServiceTime:
        """On the device: inference and output; on the host: input. Without these parts: the mean latency."""
        parts_s = self.parts_s
        if not parts_s["compute_infer"]:
            return ServiceTime(self.rows, self.mean_s)
        device_s = zip(parts_s["compute_infer"], parts_s["compute_output"], strict=True)
        return ServiceTime(self.rows, tuple(round(sum(each), 9) for each in device_s), parts_s["compute_input"])


@cache
def tables(path: Path = OFFLINE) -> tuple[Table, ...]:
    """All that was measured offline, in the order of the source; `path`: another table with the same columns.

    Raises:
        ValueError: it is no such table.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            groups = itertools.groupby(csv.DictReader(file), key=lambda row: (row["model"], row["setup"]))
            return tuple(_table(model, setup, list(rows)) for (model, setup), rows in groups)
    except KeyError as error:
        raise ValueError(f"{path}: column {error} is missing; see simulator/data/README.md") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def _table(model: str, setup: str, rows: list[dict[str, str]]) -> Table:
    def seconds(column: str) -> tuple[float, ...]:
        values = [row[f"{column}_ms"] for row in rows]
        return tuple(round(float(value) * 1e-3, 9) for value in values) if all(values) else ()

    device = _DEVICE.search(setup)
    return Table(
        model=model,
        setup=setup,
        device=device[0] if device else setup.partition(",")[0],
        max_batch_rows=int(rows[0]["max_batch_size"] or 0),
        instances=int(rows[0]["instances"] or 0),
        rows=tuple(int(row["batch"]) for row in rows),
        mean_s=seconds("avg"),
        parts_s={part: seconds(part) for part in PARTS},
    )


def table(model: str, setup: str, path: Path = OFFLINE) -> Table:
    """The table of a model (whole name or short one, see `measured`) in a setup (whole text); `path` as of `tables`.

    Raises:
        ValueError: naming what there is.
    """
    of_model = _of_model(model, path)
    found = next((each for each in of_model if each.setup == setup), None)
    if found is None:
        raise ValueError(
            f"setup is {setup!r}, in which {model} was not measured; {_choices(t.setup for t in of_model)}"
        )
    return found


def measured(model: str, device: str) -> ServiceTime:
    """Service times of a model on a device kind: A100, A30, A40, V100 or T4.

    A model may be given by the end of its name (`BERT-large`, `TFT`, `resnet50`) or any part that only it has, in any
    case. Of several setups: TensorRT in FP16; failing that FP16 in any runtime, those that use TensorRT first; failing
    that FP32. Of several data sets the source's first.

    Raises:
        ValueError: naming what there is.
    """
    of_model = _of_model(model)
    on_device = [each for each in of_model if each.device == device]
    if not on_device:
        raise ValueError(
            f"device is {device!r}, on which {model} was not measured; {_choices(t.device for t in of_model)}"
        )
    return min(on_device, key=_unlike_tensorrt_fp16).service


def _unlike_tensorrt_fp16(each: Table) -> tuple[bool, bool, bool]:
    native = "NVIDIA TensorRT" in each.setup
    return not native, "FP16" not in each.setup, not re.search("TensorRT|TF-TRT", each.setup)


def _of_model(name: str, path: Path = OFFLINE) -> list[Table]:
    models = list(dict.fromkeys(each.model for each in tables(path)))
    wanted = name.lower()
    ends = [model for model in models if f"-{model.lower()}".endswith(f"-{wanted}")]
    found = ends or [model for model in models if wanted in model.lower()]
    if len(found) != 1:
        problem = "fits several" if found else "was not measured"
        raise ValueError(f"model is {name!r}, which {problem}; {_choices(found or models)}")
    return [each for each in tables(path) if each.model == found[0]]


def _choices(names: Iterable[str]) -> str:
    return "name one of: " + "; ".join(dict.fromkeys(names))


def fit(batch: Sequence[int], seconds: Sequence[float], weight: Sequence[float] | None = None) -> ServiceTime:
    """Service times from samples of a live server: each took `seconds` with `batch` rows; any order, repeats welcome.

    Means by batch size, since throughput is a matter of means, then isotonic regression: a larger batch is hardly ever
    faster, so neighbours that are the wrong way round are taken for noise and share their mean. No straight line,
    because devices go in steps (a kernel for up to 64 rows, another for more): of the tables above, a line misses the
    worst point by 3% in the median and by 46% at most.

    Args:
        batch: Rows of each sample, at least 1.
        seconds: Of each, positive.
        weight: Of each, such as the executions that it is the mean of; None: 1.

    Raises:
        ValueError: lengths differ, nothing is there, or a number is out of range.
    """
    rows, time_s = np.asarray(batch), np.asarray(seconds, float)
    weights = np.ones(len(rows)) if weight is None else np.asarray(weight, float)
    if not len(rows) == len(time_s) == len(weights) or not len(rows):
        lengths = f"{len(rows)}, {len(time_s)} and {len(weights)}"
        raise ValueError(f"batch, seconds and weight have {lengths} values; give one of each for every sample")
    for name, values in (("batch", rows), ("seconds", time_s), ("weight", weights)):
        if not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"{name} is {values.min()} for some sample; leave out what is not positive and finite")
    sizes, smooth_s = ascending_means(rows, time_s, weights)
    return ServiceTime(tuple(sizes.tolist()), tuple(smooth_s.tolist()))


def ascending_means(at: FloatArray, values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where there are values, and their weighted means there, isotonic; of samples `(k,)`, at least one."""
    places, of_sample = np.unique(at, return_inverse=True)
    total = np.bincount(of_sample, weight)
    return places, isotonic_regression(np.bincount(of_sample, weight * values) / total, weights=total).x


def from_profile(profile: Profile) -> dict[str, ServiceTime]:
    times = {}
    for model in profile.models:
        points = model.points
        device_s = [point.mean_s - point.input_s for point in points]
        on_device = fit([point.rows for point in points], device_s, [point.executions for point in points])
        times[model.model] = replace(on_device, host_s=tuple(point.input_s for point in points))
    return times
