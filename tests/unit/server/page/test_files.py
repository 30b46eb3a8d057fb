"""The page as served: one file that loads nothing, and runs nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from balancer.operate.page import files
from balancer.operate.page.files import page

SOURCES = Path(files.__file__).parent


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_its_policy_permits_what_stands_in_it_and_nothing_else() -> None:
    served = page({})
    (style,), (script,) = (re.findall(rf"<{tag}>(.*?)</{tag}>", served.text, re.S) for tag in ("style", "script"))
    policy = served.headers["Content-Security-Policy"]
    assert f"script-src {digest(script)};" in policy
    assert f"style-src {digest(style)};" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_it_loads_nothing_and_has_no_handler_or_style_in_a_tag() -> None:
    text = page({"/live": "200"}).text
    assert not re.findall(r"\s(?:src|srcset|action|on\w+|style)=", text)
    links = re.findall(r'href="([^"]*)"', text)
    assert [link for link in links if "//" in link] == []
    assert not re.findall(r"@import|url\(", text)


def test_the_script_puts_nothing_in_as_markup() -> None:
    script = (SOURCES / "page.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


def test_links_are_escaped_and_relative() -> None:
    text = page({'/x"><script>': "<b>what</b>"}).text
    assert '<li><a href="x&quot;&gt;&lt;script&gt;">' in text
    assert "&lt;b&gt;what" in text
