"""What a soak came to: failures by cause, what each kind of fault cost, growth; results, and the page's table."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.compare.text import put_between_marks
from soak.event import Event
from soak.faults import FAULTS
from soak.growth import Sample, growth
from soak.load import Failure, Load
from soak.schedule import CRASHED

ON_KILLED_TRITON = "executing or queued on a killed Triton"
ON_CRASHED_TRITON = "executing or queued on a Triton that crashed by itself"
AT_DEAD_MODEL = "at a Triton whose model's process had died of a hang"
CROSSED_A_STOP = "over REST, sent as a stopping Triton closed the connection"
TO_KILLED_ENVOY = "connected to a killed Envoy"
UNEXPLAINED = "unexplained"
_HANGS = ("Triton hangs", CRASHED)
_KINDS = {TO_KILLED_ENVOY: "Envoy killed", ON_KILLED_TRITON: "Triton killed"}
"""Whose cost a failure of that cause is, whatever else was under way."""
_SLACK_S = 0.5
"""Between a kill and the failure that it causes; and how exactly a crash is timed."""
_DEAD_MODEL = "Stub process"
"""Begins what Triton answers where the process of a model in Python has ended."""
_RESET = ("UC", "UR", "UF", "UPE")
"""Envoy's flags for a connection that broke under a request."""


@dataclass(frozen=True)
class Explained:
    failure: Failure
    cause: str
    during: tuple[str, ...]
    """Faults that were under way."""
    logged: Mapping[str, Any]
    """Envoy's own line of it; empty where there is none."""


@dataclass
class Soak:
    seed: int
    took_s: float
    load: Load
    events: list[Event]
    samples: Mapping[str, Sequence[Sample]]
    upstreams: Mapping[str, str]
    """Worker by `host:port`."""
    envoy_log: Path

    def write(self, out: Path) -> dict[str, Any]:
        """Write the results and every failure; returns the results."""
        explained = self._explained()
        results = {
            "seed": self.seed,
            "requests": self.load.done,
            "took_s": self.took_s,
            "by_worker": dict(self.load.by_worker),
            "failures": dict(Counter(each.cause for each in explained)),
            "unexplained": dict(
                Counter(
                    f"{each.failure.code}: {each.failure.details[:120]} [{each.logged.get('flags', 'not in its log')}] "
                    f"during {' + '.join(each.during) or 'nothing'}"
                    for each in explained
                    if each.cause == UNEXPLAINED
                )
            ),
            "faults": dict(Counter(event.kind for event in self.events)),
            "not_recovered": [f"{event.kind} {event.target}: {event.failed}" for event in self.events if event.failed],
            "growth": growth(self.samples),
            "by_fault": self._by_fault(explained),
            "events": [asdict(event) for event in self.events],
            "samples": {part: [asdict(sample) for sample in samples] for part, samples in self.samples.items()},
        }
        (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        with (out / "failures.jsonl").open("w") as lines:
            lines.writelines(json.dumps(asdict(each)) + "\n" for each in explained)
        return results

    def _explained(self) -> list[Explained]:
        logged = _envoy_lines(self.envoy_log)
        found = []
        for failure in self.load.failures:
            during = (event for event in self.events if _overlap(event, failure.started_s, failure.ended_s))
            names = sorted({f"{event.kind} {event.target}".strip() for event in during})
            line = logged.get(failure.id, {})
            found.append(Explained(failure, self._cause(failure, line), tuple(names), line))
        return found

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

    def _by_fault(self, explained: Sequence[Explained]) -> list[dict[str, Any]]:
        """What each kind of fault cost; those that another overlapped count where there is no other."""
        rows = []
        for kind in dict.fromkeys(event.kind for event in self.events):
            events = [event for event in self.events if event.kind == kind and event.recovered_s]
            alone = [event for event in events if not self._overlapped(event)] or events
            causes = Counter(
                each.cause
                for event in alone
                for each in explained
                if _overlap(event, each.failure.started_s, each.failure.ended_s)
                and _KINDS.get(each.cause, kind) == kind
            )
            if alone:
                rows.append(
                    {
                        "kind": kind,
                        "times": len(events),
                        "causes": dict(causes),
                        "longest_s": max(self.load.longest_s(e.began_s, e.recovered_s or e.began_s) for e in alone),
                        "noticed_s": max((e.noticed_s - e.began_s for e in alone if e.noticed_s), default=None),
                        "recovered_s": max(
                            (e.recovered_s - e.mended_s for e in alone if e.mended_s and e.recovered_s), default=None
                        ),
                    }
                )
        return rows

    def _overlapped(self, event: Event) -> bool:
        others = (other for other in self.events if other is not event)
        return any(_overlap(other, event.began_s, event.recovered_s or np.inf) for other in others)


def _overlap(event: Event, from_s: float, to_s: float) -> bool:
    return event.began_s <= to_s and (event.recovered_s or np.inf) >= from_s


def _envoy_lines(path: Path) -> dict[int, dict[str, Any]]:
    """Envoy's lines by the number of the request; those of strangers carry none."""
    found: dict[int, dict[str, Any]] = {}
    for text in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
            found[int(line["id"])] = line
        except (ValueError, KeyError, TypeError):
            continue
    return found


def markdown(results: Mapping[str, Any]) -> str:
    """The table "When a part dies" of the page of that name, and what it was made of."""
    lines = [
        "| what happens | times | requests failed | longest request | noticed | well again |",
        "| --- | ---: | --- | ---: | --- | --- |",
    ]
    found = {row["kind"]: row for row in results["by_fault"]}
    for fault in FAULTS:
        if row := found.get(fault.name):
            failed = ", ".join(f"{count:,} {cause}" for cause, count in row["causes"].items()) or "none"
            cells = (
                *(fault.name, f"{row['times']:,}", failed, _seconds(row["longest_s"])),
                _within(fault.noticed_by, "within", row["noticed_s"]),
                _within(fault.remedy, "after", row["recovered_s"]),
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


def _within(words: str, how: str, seconds: float | None) -> str:
    return ": ".join(filter(None, [words, "" if seconds is None else f"{how} {_seconds(seconds)}"]))


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
