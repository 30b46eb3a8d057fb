"""The demo's result as one HTML page that needs nothing else: picture, table and setting."""

from __future__ import annotations

import base64
import html
import pathlib

from tools.demo.report import Report, cells, heading
from tools.demo.steps import REQUIRED_ACCURACY
from tools.load.display import milliseconds, share

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --paper: #fbfbfa; --line: #d6d8db; --soft: #5b626b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --paper: #16181b; --line: #3a3f45; --soft: #a2a9b1; --bad: #ff8a80; }
}
body { margin: 2.5rem auto; max-width: 72rem; padding: 0 1.25rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p { max-width: 46rem; } .soft { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
img { width: 100%; height: auto; background: white; border-radius: .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  text-align: right; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.25rem; }
dt { color: var(--soft); } dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .6rem; } }
"""


def page(report: Report, picture: pathlib.Path) -> str:
    """The page; the PNG at `picture` becomes part of it."""
    image = base64.b64encode(picture.read_bytes()).decode()
    digits = report.digits
    names = " and ".join(filter(None, [_named(report, -1), _named(report, 0)]))
    failures = "".join(f'<p class="bad">{html.escape(failure)}</p>' for failure in report.failures())
    setting = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in report.setting.items()
    )
    swaps_s = [row.swap_max_s for row in report.rows]
    requests = sum(row.summary.requests for row in report.rows)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Balancer demo</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>One fleet, the same bursts, {len(report.rows)} routing policies</h1>
<p class="soft">Envoy in front, a worker picked for each request, real Triton servers behind.</p>
{failures or f"<p>No request failed: {requests:,} counted ones while policies were swapped, and the digits.</p>"}
<p>{names} Each swap was made by editing the config file under traffic, and was in force at most
{milliseconds(max(swaps_s, default=float("nan")))} ms after the file was written.</p>
<p>Before that, {digits.right} of {digits.images} held-out images of handwritten digits came back right through the
whole stack: {share(digits.accuracy)}, and more than {REQUIRED_ACCURACY:.0%} had to.</p>
<img alt="For each policy: tail of latency, quantiles with an interval, requests by worker; the table has the numbers."
 src="data:image/png;base64,{image}">
<h2>Numbers</h2>
<div class="wide">{_table(report)}</div>
<p class="soft">Latencies of successful requests. The interval is of p99, 95%, from a bootstrap of half-second blocks.
In time: share of requests answered within their model's deadline. The last columns count requests by worker.</p>
<h2>p99 within each model, milliseconds</h2>
<div class="wide">{_model_table(report)}</div>
<h2>Setting</h2>
<dl>{setting}</dl>
<p class="soft">One machine, a few minutes: this orders policies that lie far apart; absolute numbers are its own.</p>
</body>
</html>
"""


def _named(report: Report, place: int) -> str:
    row = report.rows[place]
    rank = "lowest" if place else "highest"
    return f"<strong>{html.escape(row.policy)}</strong> had the {rank} p99, {milliseconds(row.summary.p99_s)} ms" + (
        "" if place else "."
    )


def _table(report: Report) -> str:
    return _html_table(heading(report), [cells(row, report.workers) for row in report.rows])


def _model_table(report: Report) -> str:
    models = sorted({name for row in report.rows for name in row.models})
    lines = [
        [row.policy, *(milliseconds(row.models[name].p99_s) if name in row.models else "-" for name in models)]
        for row in report.rows
    ]
    return _html_table(["policy", *models], lines)


def _html_table(head: list[str], lines: list[list[str]]) -> str:
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
