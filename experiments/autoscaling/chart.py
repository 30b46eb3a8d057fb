"""What the chart scales by, read from the chart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from experiments.autoscaling.closed_loop import Targets
from experiments.autoscaling.hpa import Rules, direction

_CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"


class Chart(NamedTuple):
    """Its defaults."""

    targets: Targets
    behavior: dict[str, Any]
    """As an object of Kubernetes has it."""
    scrape_s: float
    window_s: float
    """Of the rate that p99 is computed from."""

    def rules(self, least: int, most: int) -> Rules:
        """For a pool of so many workers."""
        default = Rules(least, most)
        up, down = (
            direction(self.behavior.get(name, {}), of)
            for name, of in (("scaleUp", default.up), ("scaleDown", default.down))
        )
        return Rules(least, most, up, down)


def read_chart(folder: Path = _CHART) -> Chart:
    """The values of a chart that is deployed without any of one's own."""
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    scaling = values["autoscaling"]
    (minutes,) = re.findall(
        r"_duration_seconds_bucket\{.*\}\[(\d+)m\]", (folder / "templates/_helpers.tpl").read_text()
    )
    return Chart(
        Targets(float(scaling["backlogSeconds"]), float(scaling["p99Seconds"])),
        scaling["behavior"],
        float(values["monitoring"]["intervalSeconds"]),
        60.0 * int(minutes),
    )
