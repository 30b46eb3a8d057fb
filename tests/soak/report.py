"""What a soak came to: failures by cause, growth, and what each kind of fault cost; results, and the page's table."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from simulator.compare.text import put_between_marks
from soak.client import Failure, Load
from soak.deployment import Event, Sample
from soak.faults import FAULTS

ON_KILLED_TRITON = "executing or queued on a killed Triton"
ON_CRASHED_TRITON = "executing or queued on a Triton that crashed by itself"
AT_DEAD_MODEL = "at a Triton whose model's process had died of a hang"
CROSSED_A_STOP = "over REST, sent as a stopping Triton closed the connection"
TO_KILLED_ENVOY = "connected to a killed Envoy"
UNEXPLAINED = "unexplained"
_CRASHED = "Triton ended by itself"
_HANGS = ("Triton hangs", _CRASHED)
_KINDS = {TO_KILLED_ENVOY: "Envoy killed", ON_KILLED_TRITON: "Triton killed"}
"""Whose cost a failure of that cause is, whatever else was under way."""
_SLACK_S = 0.5
"""Between a kill and the failure that it causes; and how exactly a crash is timed."""
_WARM_UP = 0.2
"""Of a stretch of samples, left out of growth."""
_LEAST_SAMPLES = 20
_DEAD_MODEL = "Stub process"
"""Begins what Triton answers where the process of a model in Python has ended."""
_RESET = ("UC", "UR", "UF", "UPE")
"""Envoy's flags for a connection that broke under a request."""


@dataclass(frozen=True)
class Explained:
    """A failure with its cause."""

    failure: Failure
    cause: str
    during: tuple[str, ...]
    """Faults that were under way."""
    logged: Mapping[str, Any]
    """Envoy's own line of it; empty where there is none."""


@dataclass
class Soak:
    seed: int
    asked: int
    took_s: float
    load: Load
    events: list[Event]
    samples: list[Sample]
    upstreams: Mapping[str, str]
    """Worker by `host:port`."""
    envoy_log: Path
    cpu_us: dict[str, float] = field(default_factory=dict)
    """Of a request, by what spent it; only known where nothing was restarted."""

    def explained(self) -> list[Explained]:
        """Every failure with its cause."""
        logged = _envoy_lines(self.envoy_log)
        return [self._explain(failure, logged.get(failure.id, {})) for failure in self.load.failures]

    def _explain(self, failure: Failure, line: Mapping[str, Any]) -> Explained:
        during = tuple(
            sorted(
                {
                    f"{event.kind} {event.target}".strip()
                    for event in self.events
                    if event.began_s <= failure.ended_s and (event.recovered_s or np.inf) >= failure.started_s
                }
            )
        )
        return Explained(failure, self._cause(failure, line), during, line)

    def _cause(self, failure: Failure, line: Mapping[str, Any]) -> str:
        worker = self.upstreams.get(str(line.get("upstream") or ""), "")
        broke = any(flag in str(line.get("flags") or "").split(",") for flag in _RESET)
        for event in self.events:
            for part, killed_s in event.killed:
                crashed = event.kind in _HANGS
                near = failure.started_s <= killed_s + (0.0 if crashed else _SLACK_S) + 0.05
                if part == worker and broke and near and failure.ended_s >= killed_s - _SLACK_S:
                    return ON_CRASHED_TRITON if crashed else ON_KILLED_TRITON
            for part, from_s, to_s in event.down:
                overlaps = failure.started_s <= to_s + _SLACK_S and failure.ended_s >= from_s
                if part == "envoy" and not line and overlaps:
                    return TO_KILLED_ENVOY
                if part == worker and broke and overlaps and failure.protocol == "REST":
                    return CROSSED_A_STOP
            if event.kind in _HANGS and event.target == worker and _DEAD_MODEL in failure.details:
                return AT_DEAD_MODEL
        return UNEXPLAINED

    def growth(self) -> dict[str, dict[str, float]]:
        """By part: megabytes and descriptors per million requests, over the longest stretch without a restart.

        The first fifth of it is left out, and what came before each kind of fault in it had happened once: a heap
        grows to the size that the worst of them needs, and stays.
        """
        stretches: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        for sample in self.samples:
            stretches[sample.part, sample.pid].append(sample)
        longest: dict[str, list[Sample]] = {}
        for (part, _), stretch in stretches.items():
            if len(stretch) > len(longest.get(part, ())):
                longest[part] = stretch
        return {
            part: _trend(stretch[self._warm(stretch) :])
            for part, stretch in longest.items()
            if len(stretch) >= _LEAST_SAMPLES
        }

    def _warm(self, stretch: Sequence[Sample]) -> int:
        """Number of the first sample that counts."""
        first: dict[str, float] = {}
        for event in self.events:
            if event.began_s >= stretch[0].at_s and event.recovered_s and event.recovered_s <= stretch[-1].at_s:
                first.setdefault(event.kind, event.recovered_s)
        warm_s = max(first.values(), default=0.0)
        by_faults = sum(sample.at_s < warm_s for sample in stretch)
        # A short stretch may be over by then; it is reckoned with what it has.
        return max(int(len(stretch) * _WARM_UP), by_faults if len(stretch) - by_faults >= len(stretch) // 2 else 0)

    def by_fault(self, explained: Sequence[Explained]) -> list[dict[str, Any]]:
        """What each kind of fault cost; those that another overlapped count where there is no other."""
        rows = []
        for kind in dict.fromkeys(event.kind for event in self.events):
            events = [event for event in self.events if event.kind == kind and event.recovered_s]
            alone = [event for event in events if not self._overlapped(event)] or events
            if not alone:
                continue
            causes: Counter[str] = Counter()
            failed = [self._failed(event, explained, causes) for event in alone]
            rows.append(
                {
                    "kind": kind,
                    "times": len(events),
                    "alone": sum(not self._overlapped(event) for event in events),
                    "failed": sum(failed),
                    "failed_most": max(failed),
                    "causes": dict(causes),
                    "longest_s": max(self.load.longest_s(e.began_s, e.recovered_s or e.began_s) for e in alone),
                    "noticed_s": _most(e.noticed_s - e.began_s for e in alone if e.noticed_s),
                    "answers_s": _most(e.said["answers_after_s"] for e in alone if "answers_after_s" in e.said),
                    "recovered_s": _most((e.recovered_s or 0) - e.mended_s for e in alone if e.mended_s),
                    "not_in_time": [event.failed for event in events if event.failed],
                }
            )
        return rows

    def as_json(self) -> dict[str, Any]:
        """For the file of results, all reckoned."""
        explained = self.explained()
        causes = Counter(each.cause for each in explained)
        unexplained = Counter(
            f"{each.failure.code}: {each.failure.details[:120]} [{each.logged.get('flags', 'not in Envoy`s log')}] "
            f"during {' + '.join(each.during) or 'nothing'}"
            for each in explained
            if each.cause == UNEXPLAINED
        )
        return {
            "seed": self.seed,
            "asked": self.asked,
            "requests": self.load.done,
            "rest": self.load.rest,
            "took_s": self.took_s,
            "rate_per_s": self.load.done / self.took_s,
            "by_worker": dict(self.load.by_worker),
            "failures": dict(causes),
            "codes": dict(Counter(f"{e.cause}: {e.failure.code}: {e.failure.details[:120]}" for e in explained)),
            "unexplained": dict(unexplained.most_common()),
            "faults": dict(Counter(event.kind for event in self.events)),
            "not_recovered": [f"{e.kind} {e.target}: {e.failed}" for e in self.events if e.failed],
            "growth": self.growth(),
            "by_fault": self.by_fault(explained),
            "cpu_us": self.cpu_us,
        }

    def _overlapped(self, event: Event) -> bool:
        ended_s = event.recovered_s or np.inf
        return any(
            other is not event and other.began_s <= ended_s and (other.recovered_s or np.inf) >= event.began_s
            for other in self.events
        )

    def _failed(self, event: Event, explained: Sequence[Explained], causes: Counter[str]) -> int:
        failed = [
            each
            for each in explained
            if each.failure.ended_s >= event.began_s
            and each.failure.started_s <= (event.recovered_s or np.inf)
            and _KINDS.get(each.cause, event.kind) == event.kind
        ]
        causes.update(each.cause for each in failed)
        return len(failed)


def write(soak: Soak, out: Path) -> dict[str, Any]:
    """Write the results and everything raw; returns the results."""
    out.mkdir(parents=True, exist_ok=True)
    results = soak.as_json()
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    with (out / "failures.jsonl").open("w") as lines:
        for each in soak.explained():
            line = asdict(each.failure) | {"cause": each.cause, "during": each.during, "envoy": dict(each.logged)}
            lines.write(json.dumps(line) + "\n")
    with (out / "samples.jsonl").open("w") as lines:
        lines.writelines(json.dumps(asdict(sample)) + "\n" for sample in soak.samples)
    return results


def _envoy_lines(path: Path) -> dict[int, dict[str, Any]]:
    """Envoy's lines by the number of the request; those of strangers carry none."""
    found: dict[int, dict[str, Any]] = {}
    if not path.exists():
        return found
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
            found[int(line["id"])] = line
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _trend(stretch: Sequence[Sample]) -> dict[str, float]:
    requests = np.array([sample.requests for sample in stretch], float)
    rss = np.array([sample.rss_bytes for sample in stretch], float)
    descriptors = np.array([sample.descriptors for sample in stretch], float)
    span = float(requests[-1] - requests[0])
    if span <= 0:
        return {}
    tenth = max(len(stretch) // 10, 3)
    return {
        "requests": span,
        "seconds": stretch[-1].at_s - stretch[0].at_s,
        "rss_mb": float(np.median(rss[-tenth:]) / 1e6),
        "mb_per_million": _slope(requests, rss),
        "mb_grown": float((np.median(rss[-tenth:]) - np.median(rss[:tenth])) / 1e6),
        **_allocated(stretch),
        "descriptors": float(np.median(descriptors[-tenth:])),
        "descriptors_grown": float(np.median(descriptors[-tenth:]) - np.median(descriptors[:tenth])),
    }


def _allocated(stretch: Sequence[Sample]) -> dict[str, float]:
    """Growth of what an allocator has handed out, where that is known."""
    told = [(sample.requests, sample.allocated_bytes) for sample in stretch if sample.allocated_bytes is not None]
    if len(told) < _LEAST_SAMPLES:
        return {}
    requests, allocated = np.array(told, float).T
    return {"allocated_mb_per_million": _slope(requests, allocated)}


def _slope(requests: npt.NDArray[np.float64], held_bytes: npt.NDArray[np.float64]) -> float:
    """The median of all slopes between two samples (Theil and Sen): single ones jump with what is in flight."""
    return float(stats.theilslopes(held_bytes, requests).slope)


def _most(values: Any) -> float | None:
    return max(values, default=None)


def markdown(results: Mapping[str, Any]) -> str:
    """The table "When a part dies" of the page of that name, and what it was made of."""
    lines = [
        "| what happens | times | requests failed | longest request | noticed | well again |",
        "| --- | ---: | --- | ---: | --- | --- |",
    ]
    found = {row["kind"]: row for row in results["by_fault"]}
    for fault in FAULTS:
        if row := found.get(fault.name):
            cells = (
                *(fault.name, f"{row['times']:,}", _cost(row), _seconds(row["longest_s"])),
                _said(fault.noticed_by, row["noticed_s"], ": within "),
                _said(fault.remedy, row["recovered_s"], ": after "),
            )
            lines.append(f"| {' | '.join(cells)} |")
    total = sum(results["failures"].values())
    causes = ", ".join(f"{count:,} {cause}" for cause, count in results["failures"].items()) or "none"
    lines += [
        "",
        f"{results['requests']:,} requests over gRPC and REST in {results['took_s'] / 60:.0f} minutes "
        f"(seed {results['seed']}), {sum(results['faults'].values()):,} faults; {total:,} failed: {causes}. "
        "The worst of each kind, of those that no other fault overlapped; `make soak` makes it again.",
    ]
    return "\n".join(lines)


def put(results: Mapping[str, Any], page: Path) -> None:
    """Write the table between its marks; OperatorError where they are not there."""
    put_between_marks(markdown(results), page, "when a part dies")


def _cost(row: Mapping[str, Any]) -> str:
    if not row["failed"]:
        return "none"
    causes = ", ".join(f"{count:,} {cause}" for cause, count in row["causes"].items() if cause != UNEXPLAINED)
    unexplained = row["causes"].get(UNEXPLAINED, 0)
    return "; ".join(filter(None, [causes, f"{unexplained:,} {UNEXPLAINED}" if unexplained else ""]))


def _said(words: str, seconds: float | None, between: str) -> str:
    if seconds is None:
        return words
    return f"{words}{between}{_seconds(seconds)}" if words else f"{between.removeprefix(': ')}{_seconds(seconds)}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
