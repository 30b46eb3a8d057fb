"""The page as served: one file that loads nothing, and runs nothing but its own script."""

import base64
import hashlib
import re
from pathlib import Path

from balancer.server.page import html as page_html
from balancer.server.page.html import page

SOURCES = Path(page_html.__file__).parent


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


def test_links_are_escaped_and_relative() -> None:
    text = page({'/x"><script>': "<b>what</b>"}).text
    assert '<li><a href="x&quot;&gt;&lt;script&gt;">' in text
    assert "&lt;b&gt;what" in text
