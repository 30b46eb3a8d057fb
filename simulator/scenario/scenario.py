"""Scenarios by name: a fleet and its workload, read from a small YAML file (schema: `schema`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from balancer.errors import OperatorError
from balancer.files.schema import did_you_mean, validate
from balancer.files.yaml_document import ConfigError, Document, read_document
from simulator.arrivals import Arrivals
from simulator.capacity import capacity_per_s
from simulator.scenario.schema import ScenarioFile
from simulator.spec import FleetSpec
from simulator.workload.workload import Workload

Split = Literal["train", "held-out"]
"""Policies are tuned and trained on the one, and judged on the other."""

_DATA = Path(__file__).parents[1] / "data"
_SHIPPED = Path(__file__).parents[1] / "scenarios"
_FOLDERS: dict[Split, Path] = {"train": _SHIPPED / "train", "held-out": _SHIPPED / "held_out"}
_MINUTES = _SHIPPED / "minutes"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated."""

    name: str
    summary: str
    split: Split
    fleet: FleetSpec
    workload: Workload
    requests: int = 20_000
    """How many a run has unless said otherwise."""

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the fleet can serve at most, see `simulator.capacity`; solved at each call."""
        return capacity_per_s(self.fleet, self.workload)

    def with_load(self, load: float) -> Scenario:
        """The same at `load` times the fleet's capacity.

        Raises:
            ValueError: the load is not above 0, or the scenario is a closed loop, which has none.
        """
        if not 0 < load < float("inf"):
            raise ValueError(f"load is {load}: give a share of the fleet's capacity above 0, such as 0.8")
        if self.workload.clients:
            raise ValueError(f"scenario {self.name!r} is a closed loop, which has no load: change `clients`")
        return replace(self, workload=self.workload.at_rate(load * self.capacity_per_s))

    def arrivals(self, seed: int, requests: int | None = None, load: float | None = None) -> Arrivals:
        """The requests of the run with this seed; equal for equal arguments.

        Raises:
            ValueError: a number is out of range; named, with the remedy.
        """
        scenario = self if load is None else self.with_load(load)
        return scenario.workload.arrivals(self.fleet, self.requests if requests is None else requests, seed)


def scenario_names(split: Split | None = None) -> list[str]:
    """Names of the scenarios that are shipped, sorted: of one split, or of both; without those of several minutes."""
    folders = list(_FOLDERS.values()) if split is None else [_FOLDERS[split]]
    return sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))


def long_scenario_names() -> list[str]:
    """Names of those that take several minutes each, which nothing is trained on by default."""
    return sorted(path.stem for path in _MINUTES.glob("*.yaml"))


def load_scenario(name_or_path: str | Path) -> Scenario:
    """A shipped scenario by its name, or the one in a file by its path, which ends in `.yaml`.

    Raises:
        OperatorError: there is no such scenario, or (`ConfigError`) its file does not fit: every problem with file,
            line, field, value and remedy.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        found = [folder / f"{name_or_path}.yaml" for folder in (*_FOLDERS.values(), _MINUTES)]
        path = next((file for file in found if file.is_file()), path)
        if path not in found:
            hint = did_you_mean(str(name_or_path), [*scenario_names(), *long_scenario_names()])
            raise OperatorError(f"scenario {str(name_or_path)!r} is not one that is shipped, nor a .yaml file; {hint}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OperatorError(f"scenario file {path} cannot be read: {error.strerror}; check the path") from error
    document = read_document(content, str(path))
    file = validate(ScenarioFile, document)
    with _blaming(document, "fleet"):
        fleet = file.fleet.spec()
    with _blaming(document, "workload", "arrivals", "log" if file.workload.arrivals.log else "trace"):
        recorded = file.workload.recorded((path.parent, _DATA))
    with _blaming(document, "workload"):
        workload = file.workload.workload(fleet, recorded)
        scenario = Scenario(path.stem, file.summary, file.split, fleet, workload, file.requests)
        return scenario if file.workload.load is None else scenario.with_load(file.workload.load)


@contextmanager
def _blaming(document: Document, *path: str) -> Iterator[None]:
    """What is wrong inside is a problem of the field at `path`."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError([document.problem(path, str(error))]) from error
