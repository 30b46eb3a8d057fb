"""The demo's result as one HTML page that needs nothing else: picture, table and setting."""

import base64
import html
import pathlib

from balancer.load.result import milliseconds, share
from dev.demo import language_models as llm
from dev.demo.report import RANKING, Report, cells, heading
from dev.demo.steps import REQUIRED_ACCURACY
from simulator.pages.html import definitions, document, table


def page(report: Report, picture: pathlib.Path, of_language_models: pathlib.Path | None = None) -> str:
    """The page; the PNGs become part of it."""
    image = _image(picture)
    digits = report.digits
    failures = "".join(f'<p class="bad">{html.escape(failure)}</p>' for failure in report.failures())
    setting = {name: html.escape(value) for name, value in report.setting.items()}
    swaps_s = [row.swap_max_s for row in report.rows]
    requests = sum(row.summary.requests for row in report.rows)
    body = f"""<h1>One fleet, the same bursts, {len(report.rows)} routing policies</h1>
<p class="soft">Envoy in front, a worker picked for each request, real Triton servers behind.</p>
{failures or f"<p>No request failed: {requests:,} counted ones while policies were swapped, and the digits.</p>"}
<p>{_named(report)} Each swap was made by editing the config file under traffic, and was in force at most
{milliseconds(max(swaps_s, default=float("nan")))} ms after the file was written.</p>
<p>Before that, {digits.right} of {digits.images} held-out images of handwritten digits came back right through the
whole stack: {share(digits.accuracy)}, and more than {REQUIRED_ACCURACY:.0%} had to.</p>
<img alt="For each policy: tail of latency, quantiles with an interval, requests by worker; the table has the numbers."
 src="data:image/png;base64,{image}">
<h2>Numbers</h2>
{_table(report)}
<p class="soft">{RANKING}</p>
<p class="soft">Latencies of successful requests. In time: share of requests answered within their model's deadline.
The last columns count requests by worker.
On a busy machine all policies are slower, and their order can change.</p>
<h2>p99 within each model, milliseconds</h2>
{_model_table(report)}
{"" if of_language_models is None else _language_models(report, of_language_models)}
<h2>Setting</h2>
{definitions(setting)}
<p class="soft">One machine, a few minutes: this orders policies that lie far apart; absolute numbers are its own.</p>
"""
    return document("Balancer demo", body)


def _image(picture: pathlib.Path) -> str:
    return base64.b64encode(picture.read_bytes()).decode()


def _language_models(report: Report, picture: pathlib.Path) -> str:
    lines = [map(html.escape, llm.cells(times)) for times in report.language_models]
    return f"""<h2>Sessions with {llm.SERVERS} real language models</h2>
<p>SmolLM2-135M by llama.cpp's server, without a GPU, asked by OpenAI's client. The same sessions under each policy:
instructions of their own, then {llm.TURNS} questions, each with all that was said before.</p>
<img alt="For each policy, seconds to the first token of each answer, and the share of prompts that was cached."
 src="data:image/png;base64,{_image(picture)}">
{table(llm.COLUMNS, lines)}
"""


def _named(report: Report) -> str:
    """Who cannot be told apart from the best, and who can be from most others."""
    first = [row for row in report.rows if row.rank == 1]
    last = [row for row in report.rows if row.rank == max(row.rank or 1 for row in report.rows) > 1]
    sentences = []
    for rows, of in ((first, "lowest"), (last, "highest")):
        if rows:
            names = ", ".join(f"<strong>{html.escape(row.policy)}</strong>" for row in rows)
            p99s_s = [row.summary.p99_s for row in rows]
            span = " to ".join(dict.fromkeys(milliseconds(each) for each in (min(p99s_s), max(p99s_s))))
            alike = "; what parts them may be chance" if len(rows) > 1 else ""
            sentences.append(f"The {of} p99, {span} ms, had {names}{alike}.")
    return " ".join(sentences)


def _table(report: Report) -> str:
    return table(heading(report), [map(html.escape, cells(row, report.workers)) for row in report.rows])


def _model_table(report: Report) -> str:
    models = sorted({name for row in report.rows for name in row.models})
    lines = [
        [
            html.escape(row.policy),
            *(milliseconds(row.models[name].p99_s) if name in row.models else "-" for name in models),
        ]
        for row in report.rows
    ]
    return table(["policy", *models], lines)
