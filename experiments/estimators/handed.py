"""Scenarios handed to an older tree, with their arrivals, whatever that tree can draw by itself.

Copy this folder into the older tree and run there `python -m experiments.estimators.handed SCENARIOS.npz FOUND.json`.
What a class had not there yet is left out, and told. SCENARIOS.npz is written by `python -m experiments.estimators
hand-over`.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.estimators.measure import Found, load_of, measure_runs
from policies import BUILTIN

_POLICY = "expected_latency"
_MODULES = ("simulator.spec", "simulator.arrivals", "balancer.core.settings")


def write(path: Path, groups: Mapping[str, Sequence[tuple[Any, Sequence[Any]]]]) -> None:
    """Scenarios, each with its arrivals by seed, in named groups."""
    arrays: dict[str, Any] = {}
    told = {
        group: [
            {
                "name": scenario.name,
                "load": load_of(scenario),
                "fleet": _told(scenario.fleet, arrays),
                "arrivals": [_told(each, arrays) for each in arrivals],
            }
            for scenario, arrivals in scenarios
        ]
        for group, scenarios in groups.items()
    }
    np.savez_compressed(path, told=np.array(json.dumps(told)), **arrays)


def _told(value: Any, arrays: dict[str, Any]) -> Any:
    """JSON-like; arrays stand aside, by their number."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"class": type(value).__name__, "of": {name: _told(each, arrays) for name, each in fields.items()}}
    if isinstance(value, np.ndarray):
        arrays[f"array{len(arrays)}"] = value
        return {"array": f"array{len(arrays) - 1}"}
    if isinstance(value, enum.Enum):
        return {"class": type(value).__name__, "value": value.value}
    if isinstance(value, Mapping):
        return {"pairs": [[_told(key, arrays), _told(each, arrays)] for key, each in value.items()]}
    return [_told(each, arrays) for each in value] if isinstance(value, tuple | list) else value


def _made(told: Any, arrays: Mapping[str, Any], left_out: set[str]) -> Any:
    """The opposite, of the classes that this tree has."""
    if isinstance(told, list):
        return tuple(_made(each, arrays, left_out) for each in told)
    if not isinstance(told, dict):
        return told
    if "array" in told:
        return arrays[told["array"]]
    if "pairs" in told:
        return {_made(key, arrays, left_out): _made(each, arrays, left_out) for key, each in told["pairs"]}
    return _instance(told, arrays, left_out)


def _instance(told: Mapping[str, Any], arrays: Mapping[str, Any], left_out: set[str]) -> Any:
    modules = map(importlib.import_module, _MODULES)
    kind = next((getattr(module, told["class"]) for module in modules if hasattr(module, told["class"])), None)
    if kind is None:
        left_out.add(told["class"])
        return None
    if "value" in told:
        return kind(told["value"])
    known = {field.name for field in dataclasses.fields(kind)}
    left_out |= {f"{told['class']}.{name}" for name in told["of"].keys() - known}
    return kind(**{name: _made(each, arrays, left_out) for name, each in told["of"].items() if name in known})


def main(scenarios: Path, out: Path) -> None:
    """Measure this tree in what was handed to it."""
    left_out: set[str] = set()
    with np.load(scenarios) as file:
        arrays = {key: file[key] for key in file.files}
    found: dict[str, dict[str, Found]] = {}
    for group, handed in json.loads(str(arrays.pop("told"))).items():
        found[group] = {}
        for one in handed:
            fleet = _made(one["fleet"], arrays, left_out)
            arrivals = [_made(each, arrays, left_out) for each in one["arrivals"]]
            seeds = range(len(arrivals))
            found[group][one["name"]] = measure_runs(fleet, arrivals, BUILTIN[_POLICY](), seeds, one["load"])
            print(f"{group}: {one['name']}")
    print("left out:", ", ".join(sorted(left_out)) or "nothing")
    command = "python -m experiments.estimators.handed SCENARIOS.npz FILE.json"
    command += "    # made by: python -m experiments.estimators hand-over"
    told = {"command": command, "policy": _POLICY, "found": found}
    out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
