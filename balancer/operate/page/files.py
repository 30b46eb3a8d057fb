"""The page as it is served: one file, of the sources beside this one, that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple


class Page(NamedTuple):
    """The file, and the headers that it is served with."""

    text: str
    headers: Mapping[str, str]


def page(others: Mapping[str, str]) -> Page:
    """The page, with links to the other pages: by path, what each is."""
    folder = files(__package__)
    style, script, frame = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
    links = "".join(_item(path, what) for path, what in others.items())
    text = frame.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).replace("<!--OTHERS-->", links)
    # Of what stands between the tags, to the letter: nothing else of either kind is run or applied.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return Page(text, headers)


def _item(path: str, what: str) -> str:
    link = html.escape(path.removeprefix("/").replace("NAME", ""))
    return f'<li><a href="{link}">{html.escape(path)}</a> {html.escape(what)}</li>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
