"""The page, as Markdown. What stands between the marks is written by hand, and stays when the page is made anew."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.by_hand import marked
from experiments.held_out import findings, tables
from experiments.held_out.kinds import KEYS, kinds
from experiments.held_out.plan import BASELINE, BEFORE, LARGE, LOADS, TOLD, WARM_UP_OF_FLEETS, WEIGHTED, Judged
from experiments.held_out.report import Report
from policies.learned.policy import Learned
from simulator.scoreboard import statistics, text
from simulator.scoreboard.metrics import WARM_UP_SHARE
from simulator.scoreboard.summary import FIGURES, NAMES

PICTURE, FLEETS_PICTURE = "held_out.png", "held_out_fleets.png"


def page(report: Report, words: str = "") -> str:
    """The page, with these words of a person in it."""
    parts = [
        "<!-- Written by python -m experiments.held_out, but for what stands between the marks -->",
        "# The learned policy, held out",
        marked(words),
        _missing(report),
    ]
    if report.scenarios:
        parts += _held_out(report)
    if report.fleets:
        parts += _fleets(report)
    parts += ["## How it was done", _method(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(report: Report) -> str:
    """The bar, for a terminal."""
    lines = findings.bar(report.scenarios, report.subject) if report.scenarios else []
    return "\n".join(
        f"{'pass' if line.met else 'FAIL'}  {findings.said(line)}: {line.found.value:.3f}, aim at most {line.limit}"
        for line in lines
    )


def _held_out(report: Report) -> list[str]:
    subject = report.subject
    more = len(report.trained) > 1
    return [
        "## The aims",
        tables.bar(report),
        "Ratios of latencies on equal arrivals, below 1 is better, **with the guard on**; in brackets 95% intervals, "
        f"over seeds. A line passes by the ratio, not by its interval. {_counted(report)} The worst scenario is of "
        "them all.",
        _told(report),
        f"![{subject} in each scenario]({PICTURE})",
        "## The scenarios",
        tables.chosen(report),
        f"## {subject} as it is served",
        tables.scenarios(report),
        "The same as ratios. †: answered fewer of the requests than what it is held against, which flatters it.",
        tables.ratios(report.scenarios, subject),
        *(["p99 within each model, where there are several:", tables.models(report)] if tables.models(report) else []),
        *(["### Every file", tables.files(report)] if more else []),
        "## Against every heuristic",
        f"Mean latency over that of {BASELINE}, geometric mean over seeds; bold: the lowest, where below 1.",
        tables.heuristics(report, "mean_s"),
        "p99:",
        tables.heuristics(report, "p99_s"),
        "Share of the requests answered in time:",
        tables.in_time(report),
        "## How much of what is possible",
        "Share of the gap from "
        f"{BASELINE} to the clairvoyant that {subject} closes, where the gap is at least {findings.LEAST_GAP:.0%}. "
        f"**The clairvoyant is no bound**: it is {BASELINE} that knows every queue and the work in it, and still "
        "chooses greedily, one request at a time. So more than 100% is possible.",
        tables.gap(report),
        "## What the guard did",
        tables.guard(report.scenarios, subject),
        f"Runs are short, as the table of scenarios says: {_guard_words()}",
        f"{subject} without its guard:",
        tables.unguarded(report.scenarios, subject),
    ]


def _fleets(report: Report) -> list[str]:
    subject = report.subject
    return [
        "## Other fleets",
        "The same file in fleets of 2, 32, 64 and 256 workers, with speeds of 1, 3 and 10 and with models on GPUs that "
        "no scenario of the train split has, at "
        f"{', '.join(f'{load:.0%}' for load in LOADS)} of their capacity (`experiments/held_out/fleets`). The first "
        f"{WARM_UP_OF_FLEETS:.0%} of the requests are not counted: in those the estimators learn how fast workers "
        "are. As served, guard on:",
        tables.ratios(report.fleets, subject, "fleet and load"),
        f"![{subject} by size of the fleet]({FLEETS_PICTURE})",
        "What the guard did there. Inputs that training never saw are a reason to fall back, so a ratio near 1 above "
        "may be the guard's:",
        tables.guard(report.fleets, subject, "fleet and load"),
        "Without it:",
        tables.unguarded(report.fleets, subject, "fleet and load"),
    ]


def _counted(report: Report) -> str:
    """What the medians are over, and what was left out of them."""
    apart = [each.board.scenario.name for each in report.scenarios if KEYS in kinds(each.board.scenario)]
    plain = [each.board.scenario.name for each in report.scenarios if not kinds(each.board.scenario)]
    words = "The medians are over the scenarios that are heterogeneous, bursty, stale or have several balancers"
    if plain:
        words += f"; none of that: {_listed(plain)}"
    if apart:
        words += (
            f"; left out as well: {_listed(apart)}, where most is won by going back to where a key was, of which the "
            "policy is told nothing"
        )
    return f"{words}. The last column is the median over all."


def _told(report: Report) -> str:
    if not report.counted:
        return ""
    return (
        f"The {WEIGHTED} of the aims is told no capacities. Against `{TOLD}` the median ratio of {report.subject} is, "
        f"of {_medians(report, report.subject, TOLD)}.\n\n"
        f"The aims were set for a weaker rival: `{BEFORE}`, which takes a batch that executes for open to what comes. "
        f"Against that one the median ratio of {report.subject} is, of {_medians(report, report.subject, BEFORE)}; "
        f"that of {BASELINE} itself is, of {_medians(report, BASELINE, BEFORE)}."
    )


def _medians(report: Report, policy: str, against: str) -> str:
    found = {figure: findings.median_ratio(report.counted, policy, against, figure) for figure in FIGURES}
    return " and of ".join(f"{NAMES[figure]} {text.interval(each)}" for figure, each in found.items())


def _splits(report: Report) -> str:
    seen = [each.board.scenario.name for each in report.scenarios if each.board.scenario.split == "train"]
    if seen:
        return f"**not so: {_listed(seen)}**, of the split that policies are trained on"
    return "nothing was trained or tuned on these scenarios"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _missing(report: Report) -> str:
    if not report.missing:
        return ""
    return f"**Not finished, and left out: {_listed(report.missing)}.** The command below goes on where it stopped."


def _guard_words() -> str:
    return (
        "a guard that falls back once may stay there to the end, while in production the policy returns after a quiet "
        "period. *Why* counts causes: `reports` missing or old, `range` inputs outside of training, `late`, `tail` and "
        "`errors` the comparison with the baseline in short windows. Those windows alone give the baseline some "
        "requests. The last columns are what the guard costs, or gains."
    )


def _method(report: Report) -> str:
    judged = [*report.scenarios, *report.fleets]
    trained = "; ".join(f"{name}: {_origin(report, name)}" for name in report.trained)
    return f"""- **Made by** `{report.command}`.
- **Files**: {trained}.
- **Runs**: {_seeds(judged)}. Every policy gets equal arrivals and seeds, from an empty fleet; the first
  {WARM_UP_SHARE:.0%} of the requests (of other fleets {WARM_UP_OF_FLEETS:.0%}) are not counted. Latency is that of
  requests answered well.
- **Ratios** are geometric means over seeds of the ratio on equal arrivals. {statistics.METHOD}.
- **Numbers** of every policy in every scenario and fleet: [held_out.csv](held_out.csv).
- **Held out**: {_splits(report)}. The heuristics run with their default options.
- **{WEIGHTED}** knows no weights, as all workers have the weight 1: what it gets from an operator who states none.
  `{TOLD}` is the same where each worker's weight is its capacity for the requests of the scenario.
- **`{BEFORE}`** takes all own rows for waiting, so that a request may join what executes.
- **The simulator** is [held against](../fidelity/live.md) the live stack; decisions take no time in it."""


def _origin(report: Report, name: str) -> str:
    policy = report.trained[name]
    record = policy.loaded.record if isinstance(policy, Learned) else {}
    made = record.get("made", {}).get("command", "")
    return f"digest `{policy.digest[:12]}`" + (f", {record.get('algorithm', '')}, made by `{made}`" if made else "")


def _seeds(judged: Sequence[Judged]) -> str:
    counts = sorted({len(each.board.seeds) for each in judged}, reverse=True)
    words = f"{counts[0]} seeds" if counts else "none"
    if len(counts) > 1:
        words += f", of other fleets with {LARGE} workers and more {min(counts)}"
    return words
