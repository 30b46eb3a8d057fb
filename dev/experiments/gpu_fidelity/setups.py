"""What was measured on real GPUs under concurrency, and how those servers were deployed."""

import csv
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from balancer.errors import OperatorError
from balancer.files.schema import Count, NotNegative, StrictModel, validate
from balancer.files.yaml_document import read_document, read_file
from simulator.service import OFFLINE, ONLINE, Table, table

_NORMAL_P99 = 2.326
METRICS = ("throughput", "mean", "p50", "p95", "p99")
"""Requests per second (rows in the table), then milliseconds as the client saw them."""
DEPLOYMENTS = Path(__file__).parent / "deployments.yaml"
_NEEDED = (
    *("model", "setup", "batch", "concurrency", "inferences_per_s"),
    *("avg_ms", "p50_ms", "p95_ms", "p99_ms"),
)
_PRECISION = re.compile(r"with (\w+)")


class Deployment(StrictModel):
    model: str
    family: str = ""
    """Under which errors are summed up; empty: `model`."""
    max_batch_rows: Count
    instances: Count
    preferred_rows: tuple[Count, ...] = ()
    """Triton's preferred batch sizes."""
    queue_delay_s: NotNegative = 0.0
    """Triton's longest wait for more requests."""
    early_batches: bool = False
    """The server is of the releases 21.07 to 21.12: two batches are formed ahead for each instance and do not grow."""
    bytes_per_row: NotNegative
    """Of the inputs."""


class _Deployments(StrictModel):
    deployments: tuple[Deployment, ...]
    """The first whose `model` is in a model's name counts."""


@dataclass(frozen=True, slots=True)
class Observed:
    concurrency: int
    values: tuple[float, ...]
    """In the order of `METRICS`, throughput in requests; NaN where the table has nothing."""


@dataclass(frozen=True, slots=True)
class Setup:
    table: Table
    deployment: Deployment
    request_rows: int
    noise_cv: float
    """Coefficient of variation of the offline latencies: their p99 over their mean, as if they were normal."""
    observed: tuple[Observed, ...]

    @property
    def family(self) -> str:
        return self.deployment.family or self.deployment.model

    @property
    def runtime(self) -> str:
        """TensorRT, PyTorch, TensorFlow, ONNX Runtime or TF-TRT."""
        named = (("NVIDIA TensorRT", "TensorRT"), *((name, name) for name in ("PyTorch", "TF-TRT", "ONNX Runtime")))
        return next((name for text, name in named if text in self.table.setup), "TensorFlow")

    @property
    def precision(self) -> str:
        """Such as FP16; empty where the table does not say."""
        found = _PRECISION.search(self.table.setup)
        return found[1] if found else ""

    @property
    def name(self) -> str:
        model = self.table.model.split("-", 1)[-1]
        data = self.table.setup.partition("Dataset: ")[2]
        runtime = f"{self.runtime} {self.precision}".strip()
        return f"{model}{f' {data}' if data else ''}, {runtime}, {self.table.device}"


def setups(offline: Path = OFFLINE, online: Path = ONLINE, deployments: Path = DEPLOYMENTS) -> tuple[Setup, ...]:
    """All setups of the online table (many clients), in its order, each with its offline table (one client).

    Raises:
        OperatorError: a file cannot be read, or one of the tables or deployments lacks what another has.
    """
    known = validate(_Deployments, read_document(read_file(deployments), str(deployments))).deployments
    rows = _rows(online)
    missing = [column for column in _NEEDED if column not in rows[0]] if rows else ["all of them"]
    if missing:
        raise OperatorError(f"{online}: columns {', '.join(missing)} are missing; see simulator/data/README.md")
    found = []
    for (model, setup), group in itertools.groupby(rows, key=lambda row: (row["model"], row["setup"])):
        try:
            found.append(_setup(offline, known, model, setup, list(group)))
        except ValueError as error:
            raise OperatorError(f"{online}, {offline}, {deployments}: {model}, {setup}: {error}") from error
    return tuple(found)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: {error}") from error


def _setup(
    path: Path, deployments: tuple[Deployment, ...], model: str, setup: str, rows: list[dict[str, str]]
) -> Setup:
    offline = table(model, setup, path)
    deployment = next((each for each in deployments if each.model in offline.model), None)
    if deployment is None:
        raise ValueError(f"model is {offline.model!r}, of which no deployment is known; add one to the file")
    observed = tuple(map(_observed, rows))
    return Setup(offline, deployment, int(rows[0]["batch"] or 1), _noise_cv(offline, path), observed)


def _observed(row: dict[str, str]) -> Observed:
    columns = ("avg_ms", "p50_ms", "p95_ms", "p99_ms")
    per_request = float(row["inferences_per_s"]) / int(row["batch"] or 1)
    latencies = (float(row[column]) if row[column] else float("nan") for column in columns)
    return Observed(int(row["concurrency"]), (per_request, *latencies))


def _noise_cv(offline: Table, path: Path) -> float:
    own = [row for row in _rows(path) if (row["model"], row["setup"]) == (offline.model, offline.setup)]
    return max(0.0, median((float(row["p99_ms"]) / float(row["avg_ms"]) - 1) / _NORMAL_P99 for row in own))
