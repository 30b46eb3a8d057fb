"""The Grafana dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parents[2] / "deploy" / "observability" / "dashboard.json"


def dashboard() -> dict[str, Any]:
    """As the file has it."""
    content: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content
