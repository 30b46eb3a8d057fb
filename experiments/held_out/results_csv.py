"""The results as CSV, a line for each policy in each scenario and fleet: small enough to be kept beside the page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.held_out.plan import BASELINE
from simulator.scoreboard.summary import FIGURES

_DIGITS = 5


def as_csv(document: Mapping[str, Any]) -> str:
    """Of what `report.as_json` gives. Latencies in seconds, means over seeds; empty for what is not a number.

    Columns that end in `_ratio` are latencies over the baseline's on equal arrivals, with 95% intervals.
    """
    rows = [row for group in ("scenarios", "fleets") for judged in document[group] for row in _rows(judged)]
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def _rows(judged: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    about = {name: _cell(judged[name]) for name in ("scenario", "workers", "load", "requests")}
    for policy, metrics in judged["policies"].items():
        ratios = judged["ratios"].get(policy, {}).get(BASELINE, {})
        yield {
            **about,
            "seeds": str(len(judged["seeds"])),
            "policy": policy,
            **{figure: _cell(_mean(metrics[figure])) for figure in FIGURES},
            "in_time": _cell(metrics["within_deadline"]),
            "answered": _cell(metrics["shares"]["ok"]),
            **{name: cell for figure in FIGURES for name, cell in _ratio(figure, ratios.get(figure)).items()},
        }


def _ratio(figure: str, estimate: Mapping[str, float | None] | None) -> dict[str, str]:
    found = estimate or {}
    name = f"{figure.removesuffix('_s')}_ratio"
    return {
        name: _cell(found.get("value")),
        f"{name}_low": _cell(found.get("low")),
        f"{name}_high": _cell(found.get("high")),
    }


def _mean(by_seed: list[float | None]) -> float | None:
    values = [each for each in by_seed if each is not None]
    return sum(values) / len(values) if values and len(values) == len(by_seed) else None


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)
