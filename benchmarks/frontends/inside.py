"""How long a decision takes inside Envoy: its module's own code over shared books, without Envoy around it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from balancer.core.settings import Settings
from balancer.front.build import SOURCES, WITHOUT_HOOKS
from balancer.front.folder import Folder
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.compiler import compiler
from balancer.native.library import PATH, Library
from benchmarks.decisions import MODELS, add_fleet
from benchmarks.results import Aim, Section, Table
from policies import BUILTIN
from policies.base import Policy

_IN_FLIGHT_PER_WORKER = 3
_AIMS_US = {16: 5.0, 64: 15.0}
"""By workers, for the slowest policy."""
_FIELDS = ("decide_p50_us", "decide_p99_us", "end_p50_us", "end_p99_us")


def measure(requests: int = 4000) -> Section:
    """Every shipped policy at both sizes of fleet."""
    library = Library()
    with tempfile.TemporaryDirectory(prefix="native-") as name:
        program = _compiled(Path(name) / "inside")
        rows = [
            _row(program, library, BUILTIN[policy](), workers, requests, Path(name) / f"{policy}-{workers}")
            for policy in BUILTIN
            for workers in _AIMS_US
        ]
    aims = []
    for workers, limit_us in _AIMS_US.items():
        slowest = max((row for row in rows if row["workers"] == workers), key=lambda row: float(row["decide_p50_us"]))
        name = f"Slowest policy inside Envoy at {workers} workers, p50 ({slowest['policy']})"
        aims.append(Aim(name, float(slowest["decide_p50_us"]), "µs", limit_us))
    return Section([_table(rows)], {"native": rows}, aims)


def _compiled(target: Path) -> Path:
    files: list[str | Path] = [
        "-I",
        PATH.parent,
        "-I",
        SOURCES,
        "-o",
        target,
        Path(__file__).with_name("inside.c"),
        *WITHOUT_HOOKS,
    ]
    strict = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
    subprocess.run([*compiler(), *strict, *files, "-pthread", "-lm", "-ldl"], check=True)
    return target


def _row(program: Path, library: Library, policy: Policy, workers: int, requests: int, path: Path) -> dict[str, Any]:
    folder = Folder(path)
    router = SharedRouter(policy, Settings(), 1, library, Module(library), folder)
    add_fleet(router, workers, time.monotonic())
    names = [f"worker-{number}" for number in range(workers)]
    grpc, http = ({name: f"10.0.0.{k}:{port}" for k, name in enumerate(names)} for port in (8001, 8000))
    router.tell(grpc, http)
    router.serve(True)
    in_flight = _IN_FLIGHT_PER_WORKER * workers
    command: list[str | Path] = [program, PATH, path, str(requests), str(in_flight), *MODELS]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    folder.close()
    found = {field: int(nanoseconds) / 1000 for field, nanoseconds in zip(_FIELDS, said, strict=True)}
    return {"policy": policy.name, "workers": workers, **found}


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = ["policy", *(f"{what}, {workers} workers" for workers in _AIMS_US for what in ("decide", "end"))]
    table = Table(
        "A decision inside Envoy: lock, eligibility, policy, counting in, endpoints; and its end; µs", columns
    )
    for name in dict.fromkeys(row["policy"] for row in rows):
        of_policy = [row for row in rows if row["policy"] == name]
        cells = [
            f"{row[f'{what}_p50_us']:.1f} ({row[f'{what}_p99_us']:.1f})"
            for row in of_policy
            for what in ("decide", "end")
        ]
        table.rows.append([name, *cells])
    return table
