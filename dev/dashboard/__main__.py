"""`python -m dev.dashboard FILE`: see the package."""

from __future__ import annotations

import sys
from pathlib import Path

from dev.dashboard.grafana import text

Path(sys.argv[1]).write_text(text(), encoding="utf-8")
