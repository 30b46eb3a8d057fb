"""What pages have in common: one file that loads nothing, readable on light and dark."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LineStyles = dict[str, tuple[str, Any]]

STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --paper: #fbfbfa; --line: #d6d8db; --soft: #5b626b; --hot: #e8743b;
  --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --paper: #16181b; --line: #3a3f45; --soft: #a2a9b1; --hot: #b8501f; --bad: #ff8a80; }
}
body { margin: 2.5rem auto; max-width: 76rem; padding: 0 1.25rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p, figcaption { max-width: 52rem; } .soft, figcaption { color: var(--soft); }
.bad { color: var(--bad); font-weight: 600; }
img { width: 100%; height: auto; background: white; border-radius: .5rem; }
figure { margin: 1.2rem 0; } figure svg { width: 100%; max-width: 62rem; height: auto; display: block; }
figcaption { font-size: .92rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  text-align: right; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
td.heat { padding: .3rem .6rem; background: color-mix(in srgb, var(--hot) calc(var(--heat) * 75%), var(--paper)); }
table.heat th { padding: .3rem .6rem .3rem 0; } th.group { padding-top: .9rem; color: var(--soft); }
table.words td, table.words th { text-align: left; vertical-align: top; white-space: normal; }
table.words td:first-child { white-space: nowrap; }
tr.reference td { color: var(--soft); font-style: italic; }
details { border-top: 1px solid var(--line); padding: .55rem 0; } summary { cursor: pointer; }
details details { border: 0; } details[open] { padding-bottom: 2rem; }
code { font-size: .9em; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.25rem; }
dt { color: var(--soft); } dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .6rem; } }
"""


def document(title: str, body: str) -> str:
    """The page; `title` is text, `body` HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def table(head: Iterable[str], lines: Iterable[Iterable[str]], kind: str = "", more: str = "") -> str:
    """A table that scrolls by itself; `head` is text, `lines` have HTML by cell; `more`: rows of HTML below."""
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{rows}{more}</tbody></table></div>"
    )


def definitions(entries: Mapping[str, str]) -> str:
    """Names, which are text, and what is to be said of each, in HTML."""
    return (
        "<dl>" + "".join(f"<dt>{html.escape(name)}</dt><dd>{value}</dd>" for name, value in entries.items()) + "</dl>"
    )


def line_styles(names: Sequence[str], colours: Sequence[str], dashes: Sequence[Any]) -> LineStyles:
    """A colour and dashes for each; where colours begin anew, dashes go on, so that few are alike."""
    count = len(colours)
    return {name: (colours[i % count], dashes[(i + i // count) % len(dashes)]) for i, name in enumerate(names)}
