"""The distribution of sealed scenarios as CSV, made of the numbers that are drawn from."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from typing import Any

from simulator.train.written import NETWORK, WRITTEN, Written


def as_csv(written: Written = WRITTEN) -> str:
    """A line for each draw, which is independent of the others unless it says otherwise."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["what", "drawn", "values"])
    for each in fields(Written):
        if "what" in each.metadata:
            how = each.metadata["how"]
            writer.writerow([each.metadata["what"], how, _values(how, getattr(written, each.name))])
    ways_ms = ", ".join(f"{1e3 * each:g}" for each in (NETWORK.to_worker_s, NETWORK.to_client_s, NETWORK.outcome_s))
    writer.writerow(["milliseconds to the worker, back, and until an outcome is known", "always", ways_ms])
    settings = "the defaults, but for sticky_keys, off where there are sessions; nothing is held or shed"
    writer.writerow(["settings of the routers", "always", settings])
    return text.getvalue()


def _values(how: str, value: Any) -> str:
    if "uniform" in how:
        return f"{value[0]:g} to {value[1]:g}"
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return ", ".join(f"{name} {share:.0%}" for name, share in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) if isinstance(value[0], str) else ", ".join(f"{each:g}" for each in value)
    return f"{value:g}"
