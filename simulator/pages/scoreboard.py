"""A scoreboard as one HTML page that needs nothing else: plots, tables, and how to make it again."""

import html
import importlib.metadata
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simulator.compare import statistics, summary, table, text
from simulator.compare.compare import Board
from simulator.compare.document import ComparisonReport
from simulator.compare.metrics import WARM_UP_SHARE
from simulator.compare.summary import FIGURES, NAMES, Figure
from simulator.pages import plots
from simulator.pages.html import LineStyles, definitions, document
from simulator.pages.html import table as html_table

_MANY_WORKERS = 16
_WORST_SHOWN = 4
_LADDER = (
    "Each policy beside what is possible. Pooled: all devices as one, which bounds the mean of every policy that "
    "answers all requests (for p99 a yardstick). Social: knows the work left in every queue, and minds what a request "
    "costs others. Clairvoyant: expected_latency that knows the work left in every queue. Exact queues: "
    "expected_latency that knows every queue without delay. From the hollow dot to the full one: what old reports cost "
    "the policy."
)
_TIMELINE = (
    "Requests at each worker through the largest burst of seed {}, of the policies with the lowest, a middle and the "
    "highest p99."
)


def page(report: ComparisonReport) -> str:
    boards = report.boards
    style = plots.styles(report.policies)
    title = f"{len(report.policies)} routing policies in {_counted(len(boards), 'scenario')}"
    sections = [_section(board, report, style, folded=len(boards) > 1) for board in boards]
    body = f"""<h1>{html.escape(title)}</h1>
<p class="soft">Simulated fleets of Triton servers; {_counted(len(boards[0].seeds), "seed")}, equal arrivals for every
policy. Latency is that of requests answered well; less is better everywhere but where a heading says otherwise.</p>
{_overall(report, style) if len(boards) > 1 else ""}
{"<h2>By scenario</h2>" if len(boards) > 1 else ""}
{"".join(sections)}
<h2>Setting</h2>
{_setting(report)}"""
    return document(f"Scoreboard: {title}", body)


def _overall(report: ComparisonReport, style: LineStyles) -> str:
    head, lines = table.aggregate_lines(report)
    reference = "clairvoyant" if summary.have_references(report.boards) else "best of the seed"
    drawn = _figure(
        plots.profiles(summary.aggregate(report.boards, report.baseline), style, reference),
        "Performance profiles: the share of all runs whose latency is at most so many times that of the "
        f"{reference} on equal arrivals. Higher and further left is better.",
    )
    return f"""<h2>Over all scenarios</h2>
{html_table(head, (map(html.escape, line) for line in lines))}
<p class="soft">{html.escape(table.aggregate_caption(report))}</p>
{drawn}
{"".join(_heat(report, figure) for figure in FIGURES)}
<p class="soft">Latency as a multiple of the best policy's in the scenario. <b>Bold</b>: the
{statistics.CONFIDENCE:.0%} interval leaves room for being as good as the best. †: answered fewer of the requests than
the best, which flatters its latencies.</p>
<h2>Where each wins and loses</h2>
{_wins_and_losses(report)}
"""


def _heat(report: ComparisonReport, figure: Figure) -> str:
    body = []
    for split, boards in _split_names(report.boards).items():
        kind = "training" if split == "train" else "held out"
        body.append(f'<tr><th class="group" colspan="{len(report.policies) + 1}">{kind}</th></tr>')
        for board in boards:
            cells = "".join(_heat_cell(board, policy, figure) for policy in report.policies)
            body.append(f"<tr><td>{html.escape(board.scenario.name)}</td>{cells}</tr>")
    # Ten names fit beside each other where they may break at their underscores.
    names = (html.escape(name).replace("_", "_<wbr>") for name in ["scenario", *report.policies])
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        f'<h2>{NAMES[figure]} by scenario, multiples of the best</h2><div class="wide"><table class="heat">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _heat_cell(board: Board, policy: str, figure: Figure) -> str:
    found = summary.cell(board, policy, figure)
    value = found.ratio.value
    # From 1 to five times the best, by its logarithm.
    heat = min(max(math.log(value, 5), 0.0), 1.0) if math.isfinite(value) else 1.0
    shown = text.ratio(value) + "†" * found.answers_less
    return (
        f'<td class="heat" style="--heat:{heat:.2f}" title="{html.escape(text.interval(found.ratio))}">'
        f"{f'<b>{shown}</b>' if found.tied else shown}</td>"
    )


def _wins_and_losses(report: ComparisonReport) -> str:
    lines = []
    for policy in report.policies:
        cells = [html.escape(policy)]
        for figure in FIGURES:
            lost = summary.losses(report.boards, policy, figure)
            named = [f"{html.escape(name)} {text.ratio(each.ratio.value)}" for name, each in lost.items()]
            more = f" and {len(named) - _WORST_SHOWN} more" if len(named) > _WORST_SHOWN else ""
            cells += [f"{len(report.boards) - len(lost)} of {len(report.boards)}"]
            cells += [", ".join(named[:_WORST_SHOWN]) + more or "nowhere"]
        lines.append(cells)
    head = [
        "policy",
        *(
            f"{NAMES[f]}: {part}"
            for f in FIGURES
            for part in ("as good as the best", "loses most (multiple of the best)")
        ),
    ]
    return html_table(head, lines, "words")


def _section(board: Board, report: ComparisonReport, style: LineStyles, *, folded: bool) -> str:
    name, about = html.escape(board.scenario.name), html.escape(board.scenario.summary)
    content = "".join(_content(board, report, style))
    if not folded:
        return f"<h2>{name}</h2><p>{about}</p>{content}"
    best = html.escape(summary.ranked(board)[0])
    return (
        f'<details><summary><b>{name}</b>: {about} <span class="soft">Best mean: {best}.</span></summary>'
        f"{content}</details>"
    )


def _content(board: Board, report: ComparisonReport, style: LineStyles) -> Iterator[str]:
    fleet = board.scenario.fleet
    load = f"at {board.load:.0%} of capacity" if math.isfinite(board.load) else "a closed loop"
    yield (
        f'<p class="soft">{_counted(len(fleet.workers), "worker")}, {_counted(len(fleet.models), "model")}, '
        f"{_counted(fleet.balancers, 'balancer')}; {load}; {board.requests:,} requests a seed.</p>"
    )
    lines = [map(html.escape, table.cells(board, policy, report.baseline)) for policy in summary.ranked(board)]
    yield html_table(table.headings(report.baseline, board), lines, more=_references(board))
    yield _figure(
        plots.tails(board, style),
        "Latency that a share of the requests exceeds, mean over seeds. Further right are the rarer, slower requests.",
    )
    if board.sweep:
        yield _figure(plots.sweep(board, style), "p99 over load, with intervals over seeds.")
    if board.bound is not None:
        yield _figure(plots.ladder(board, style), _LADDER)
        yield from (f"<h3>Regret in {NAMES[f]}, ms</h3>" + html_table(*table.regret_lines(board, f)) for f in FIGURES)
    if board.timelines:
        yield _figure(plots.timeline(board), _TIMELINE.format(board.seeds[0]))
    if len(fleet.models) > 1:
        yield "<h3>p99 within each model, ms</h3>" + _models(board)
    yield "<h3>Devices busy, share of the time</h3>" + _busy(board)


def _references(board: Board) -> str:
    """Rows with a mean and a p99, columns 2 and 5."""
    return "".join(
        f'<tr class="reference"><td>{name}</td><td>{mean}</td><td></td><td></td><td>{p99}</td>'
        f'<td colspan="{len(table.COLUMNS) - 5}"></td></tr>'
        for name, (mean, p99) in table.reference_lines(board).items()
    )


def _models(board: Board) -> str:
    names = [model.name for model in board.scenario.fleet.models]
    lines = []
    for policy in summary.ranked(board):
        models = board.policies[policy].models
        p99s = (text.milliseconds(float(np.mean(models[name].p99_s))) for name in names)
        lines.append([html.escape(policy), *p99s])
    return html_table(["policy", *names], lines)


def _busy(board: Board) -> str:
    names = [f"{worker.name} {worker.device}".removesuffix(" *") for worker in board.scenario.fleet.workers]
    many = len(names) > _MANY_WORKERS
    lines = []
    for policy in summary.ranked(board):
        share = board.policies[policy].busy_share.mean(axis=0)
        shown = np.quantile(share, [0.0, 0.25, 0.5, 0.75, 1.0]) if many else share
        lines.append([html.escape(policy), *(text.share(float(each)) for each in shown)])
    return html_table(["policy", *(("least", "quarter", "median", "three quarters", "most") if many else names)], lines)


def _setting(report: ComparisonReport) -> str:
    seeds = report.boards[0].seeds
    entries = {
        "Again": f"<code>{html.escape(report.command)}</code>",
        "Seeds": f"{seeds[0]} to {seeds[-1]}; one draws arrivals, service times, delays and the policy's picks",
        "Not counted": f"the first {WARM_UP_SHARE:.0%} of each run's requests",
        "Intervals": html.escape(statistics.METHOD),
        "Capacity": "the most requests a second at the best split and the best batches; real fleets saturate below",
        "Version": f"balancer {importlib.metadata.version('balancer')}",
    }
    return definitions(entries)


def _figure(drawn: str, caption: str) -> str:
    return f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _split_names(boards: Sequence[Board]) -> Mapping[str, list[Board]]:
    return {
        split: chosen
        for split in ("train", "held-out")
        if (chosen := [board for board in boards if board.scenario.split == split])
    }
