"""The comparison as tables: markdown for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gpu_fidelity.errors import Comparison, groups, summary
from experiments.gpu_fidelity.setups import METRICS
from policies.base import FloatArray


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Two tables: errors summed up over groups, and by setup."""
    lines = [_row("absolute error: median / 90th percentile", *METRICS), _rule()]
    for heading, part in groups(comparisons).items():
        middle, most = summary(part)
        lines.append(_row(heading, *(f"{100 * m:.0f}% / {100 * p:.0f}%" for m, p in zip(middle, most, strict=True))))
    lines += ["", _row("median: absolute (signed)", *METRICS), _rule()]
    for each in comparisons:
        lines.append(_row(each.setup.name, *map(_cell, each.errors.T)))
    return "\n".join(lines) + "\n"


def worth_table(worth: dict[str, FloatArray]) -> str:
    """Median errors with one decision left out."""
    lines = [_row("median error without ConvNets", *METRICS), _rule()]
    lines += [_row(name, *(f"{100 * error:.0f}%" for error in errors)) for name, errors in worth.items()]
    return "\n".join(lines) + "\n"


def _cell(errors: Any) -> str:
    known = errors[~np.isnan(errors)]
    return f"{100 * np.median(np.abs(known)):.0f}% ({100 * np.median(known):+.0f}%)" if len(known) else "-"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule() -> str:
    return f"|---|{'---:|' * len(METRICS)}"


def write_json(comparisons: Sequence[Comparison], path: Path) -> None:
    """Every row: measured and predicted; and the sums over groups. Throughput in requests per second, else ms."""
    document = {
        "metrics": METRICS,
        "groups": {
            heading: dict(zip(("median", "p90"), (_plain(values) for values in summary(part)), strict=True))
            for heading, part in groups(comparisons).items()
        },
        "setups": [_setup(each) for each in comparisons],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _setup(each: Comparison) -> dict[str, Any]:
    rows = zip(each.setup.observed, each.measured, each.predicted, strict=True)
    return {
        "model": each.setup.table.model,
        "setup": each.setup.table.setup,
        "request_rows": each.setup.request_rows,
        "rows": [
            {"concurrency": one.concurrency, "measured": _plain(measured), "predicted": _plain(predicted)}
            for one, measured, predicted in rows
        ],
    }


def _plain(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else round(float(value), 4) for value in values]
