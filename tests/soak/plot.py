"""Rate, failures and memory over time, with the faults marked."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib as mpl
import numpy as np

from soak.report import Soak

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the back end is chosen

_COLOURS = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]  # of a listed colour map


def draw(soak: Soak, path: Path) -> None:
    start_s = min(soak.load.started_s, default=0.0)
    ended_s = np.frombuffer(soak.load.ended_s) - start_s
    edges = np.arange(0, max(ended_s.max(initial=1.0), 1.0) + 1.0, 1.0)
    figure, (rate, failed, memory, faults) = plt.subplots(
        4, 1, figsize=(14, 11), sharex=True, height_ratios=(2, 1, 2, 2.4), layout="constrained"
    )
    rate.stairs(np.histogram(ended_s, edges)[0], edges, color="tab:blue")
    rate.set(ylabel="answers a second", title=f"{soak.load.done:,} requests, seed {soak.seed}")
    failures_s = np.array([failure.ended_s - start_s for failure in soak.load.failures])
    failed.stairs(np.histogram(failures_s, edges)[0], edges, color="tab:red", fill=True)
    failed.set(ylabel="failures a second")
    for part in dict.fromkeys(sample.part for sample in soak.samples):
        if part.startswith("worker") and not part.endswith("agent"):
            continue
        samples = [sample for sample in soak.samples if sample.part == part]
        # A gap where one process ended and the next began.
        new = [before.pid != after.pid for before, after in itertools.pairwise([samples[0], *samples])]
        memory.plot(
            [sample.at_s - start_s for sample in samples],
            [np.nan if gap else sample.rss_bytes / 1e6 for sample, gap in zip(samples, new, strict=True)],
            label=part,
            linewidth=1,
        )
    memory.set(ylabel="resident memory, MB")
    memory.set_ylim(bottom=0)
    memory.legend(loc="lower right", ncols=3, fontsize=8)
    kinds = list(dict.fromkeys(event.kind for event in soak.events))
    for event in soak.events:
        at, colour = kinds.index(event.kind), _COLOURS[kinds.index(event.kind) % len(_COLOURS)]
        began_s = event.began_s - start_s
        width_s = max((event.recovered_s or began_s) - event.began_s, 0.3)
        faults.broken_barh([(began_s, width_s)], (at - 0.4, 0.8), color=colour)
    faults.set_yticks(range(len(kinds)), kinds, fontsize=8)
    faults.set(xlabel="seconds", title="faults, from their beginning until all was as before", ylim=(len(kinds), -1))
    for axes in (rate, failed, memory):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
