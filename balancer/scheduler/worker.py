"""One worker beside the estimators' numbers, and what speaks against giving it a request."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from balancer.bounds import MAX_DEVICE_KINDS
from balancer.kernel.settings import ModelSettings, Settings, ZoneSettings
from balancer.scheduler.events import ModelReport


@dataclass
class Worker:
    name: str
    weight: float = 1.0
    device: str = ""
    memory_bytes: int = 0
    zone: str = ""
    draining: bool = False
    stopping: bool = False
    ready: bool = False
    failing: frozenset[str] = frozenset()
    """Models at which it fails while others do not, see `outliers`."""
    stream: int = -1
    """That carried the last report; -1: there was none."""
    incarnation: int = -1
    number: int = -1
    utilisation: float = float("nan")
    memory_used_bytes: int = 0
    versions: dict[str, frozenset[str]] = field(default_factory=dict)
    batches: dict[tuple[str, str, int], tuple[int, float]] = field(default_factory=dict)
    """The cumulative counters last seen for each (model, version, rows)."""

    def executed(self, model: ModelReport) -> Iterator[tuple[int, int, float]]:
        """Rows, number and seconds of what was executed since the last report."""
        for rows, executions, seconds in model.batches:
            key = (model.model, model.version, rows)
            before = self.batches.get(key, (0, 0.0))
            new = executions - before[0]
            if new < 0 or seconds < before[1]:
                # Counters that fall belong to another Triton than they say: they are a new beginning and no measure.
                self.batches[key] = (executions, seconds)
            elif new > 0:
                self.batches[key] = (executions, seconds)
                yield rows, new, seconds - before[1]


def tier_of(zone: str, zones: ZoneSettings) -> int:
    """How far a zone is from the balancer's own, which is 0: its place among the zones in order, and those that are not
    named come last. What is unknown is near.
    """
    if not zone or not zones.own or zone == zones.own:
        return 0
    farther = [each for each in zones.order if each != zones.own]
    return 1 + (farther.index(zone) if zone in farther else len(farther))


def kinds_of(devices: Iterable[str]) -> list[int]:
    """Number each worker's kind of device, in order of first sight; the last number is for all kinds beyond."""
    numbers: dict[str, int] = {}
    return [min(numbers.setdefault(device, len(numbers)), MAX_DEVICE_KINDS - 1) for device in devices]


def latest(versions: Collection[str]) -> str:
    """That Triton serves where a request names none; empty: there is none."""
    return max(versions, key=lambda version: (len(version), version), default="")


def objections(
    worker: Worker, settings: Settings, model: str, version: str, *, drain: bool = False, failing: bool = False
) -> Iterator[str]:
    """Why a worker may not serve a model, in words; none: it may. `drain`, `failing`: one that is may as well.

    An empty model stands for calls that concern the server and not a model.
    """
    if (worker.draining or worker.stopping) and not drain:
        yield "draining"
    if model in worker.failing and not failing:
        yield f"it fails at every request to {model}, and others do not"
    row = settings.models.get(model)
    if not settings.reports_required and worker.number < 0:
        yield from table_objections(worker, row, model, version, frozenset())
        return
    if worker.number < 0:
        yield "no report from its agent yet"
        return
    if not worker.ready:
        yield "not ready"
    if not model:
        return
    loaded = worker.versions.get(model, frozenset())
    if not loaded:
        yield f"model {model} is not loaded"
    elif version and version not in loaded:
        yield f"version {version} of {model} is not loaded (it has {', '.join(sorted(loaded))})"
    yield from table_objections(worker, row, model, version, loaded)


def table_objections(
    worker: Worker, row: ModelSettings | None, model: str, version: str, loaded: Collection[str]
) -> Iterator[str]:
    if row is None:
        return
    served = version or latest(loaded)
    if row.versions and served and served not in row.versions:
        yield f"version {served} of {model} is not permitted (pinned to {', '.join(row.versions)})"
    if row.devices and worker.device and worker.device not in row.devices:
        yield f"device {worker.device} is not one of {', '.join(row.devices)}"
    if row.memory_bytes and worker.memory_bytes and row.memory_bytes > worker.memory_bytes:
        yield f"needs {row.memory_bytes} bytes of device memory, has {worker.memory_bytes}"
