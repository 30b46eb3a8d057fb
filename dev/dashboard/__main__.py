"""`python -m tools.dashboard FILE`: see the package."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.dashboard.grafana import text

Path(sys.argv[1]).write_text(text(), encoding="utf-8")
