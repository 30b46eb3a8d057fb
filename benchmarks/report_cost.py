"""What reports cost the balancer: `reports.py`, in the form of the others."""

from __future__ import annotations

from benchmarks.reports import MODELS, measure_reports
from benchmarks.results import Aim, Section, Table

WORKERS = 64
_DURATION_S = 4.0
_LABELS = {
    "report_bytes": "size of a report, bytes",
    "encode_us": "agent: write a report, µs",
    "decode_us": "balancer: read a report, µs",
    "decode_and_observe_us": "balancer: read it and take it into the estimators, µs",
    "receive_us": "balancer: the same over gRPC, without the estimators, µs",
    "receive_with_observe_us": "balancer: all of it, µs",
    "sustained_per_s": "received a second by one process, without the estimators",
    "sustained_with_observe_per_s": "received a second by one process",
    "possible_with_observe_per_core_and_s": "possible a second and core",
    "memory_with_observe_mib": f"memory grown by {WORKERS} streams, MiB",
}


def measure(quick: bool = False) -> Section:
    """Cost and rate at a fleet of 64."""
    figures = measure_reports(WORKERS, _DURATION_S / 3 if quick else _DURATION_S)
    rows = [[label, f"{figures[name]:,.1f}"] for name, label in _LABELS.items()]
    per_core = figures["possible_with_observe_per_core_and_s"]
    aim = Aim("Reports a second and core, estimators included", per_core, "/s", 10_000, at_least=True)
    title = f"Reports of {MODELS} busy models each, from {WORKERS} workers over {WORKERS} streams (CPU time)"
    return Section([Table(title, ["", "value"], rows)], dict(figures), [aim])
