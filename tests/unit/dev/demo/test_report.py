"""The demo's report, of clearly made-up outcomes: gamma latencies, not measurements."""

import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from balancer.load.result import LoadResult
from dev.demo import steps
from dev.demo.__main__ import finish
from dev.demo.plot import styles_of
from dev.demo.report import RANKING, Report, make_report, table
from dev.demo.steps import DigitsOutcome, PolicyOutcome

README = Path(__file__).resolve().parents[4] / "README.md"
MEAN_MS = {"round_robin": 700, "least_requests": 40, "wlpr": 33, "peak_ewma": 37, "expected_latency": 22}
FLEET: dict[str, Any] = {
    "workers": [{"worker": f"worker-{i}", "device": gpu} for i, gpu in enumerate(["A100", "V100", "A30", "T4"])]
}
DIGITS = DigitsOutcome(540, 530, {})


def outcome(policy: str, mean_ms: float, failed: int = 0, count: int = 3000) -> PolicyOutcome:
    generator = np.random.default_rng(len(policy))
    scheduled_s = np.sort(generator.random(count) * 15)
    model = generator.integers(0, 3, count)
    code = np.zeros(count, np.int64)
    code[:failed] = 1
    result = LoadResult(
        models=tuple(mix.name for mix in steps.MIX),
        codes=("OK", "UNAVAILABLE"),
        workers=tuple(worker["worker"] for worker in FLEET["workers"]),
        duration_s=15.0,
        scheduled_s=scheduled_s,
        started_s=scheduled_s + 1e-4,
        latency_s=generator.gamma(1.2, mean_ms / 1.2e3, count) + 2e-3,
        deadline_s=np.array([mix.deadline_s for mix in steps.MIX])[model],
        rows=np.ones(count, np.int64),
        model=model,
        code=code,
        worker=generator.choice(4, count, p=(0.4, 0.25, 0.25, 0.1)),
    )
    return PolicyOutcome(policy, result, (scheduled_s * 2).astype(np.int64), (0.04, 0.06, 0.05))


def made_up(means_ms: Mapping[str, float]) -> tuple[Report, list[PolicyOutcome]]:
    found = [outcome(policy, mean_ms) for policy, mean_ms in means_ms.items()]
    return make_report(DIGITS, found, steps.Plan(), FLEET), found


def test_rows_come_by_rank_and_within_a_rank_by_name() -> None:
    report, _ = made_up(MEAN_MS | {"a_twin": 22, "wlpr_twin": 33})
    ranked = [(row.rank, row.policy) for row in report.rows]
    assert ranked == sorted(ranked)
    rank = {policy: of for of, policy in ranked}
    assert rank["a_twin"] == rank["expected_latency"] == 1
    assert rank["wlpr"] == rank["wlpr_twin"]
    assert rank["round_robin"] == len(ranked)
    assert all(row.p99_interval_s[0] <= row.summary.p99_s <= row.p99_interval_s[1] for row in report.rows)
    assert report.failures() == []


def shape(text: str) -> list[str]:
    """The lines of a table with each word of a row as `x`, and what stands below."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    rule = next(place for place, line in enumerate(lines) if set(line) == {"─"})
    last = next(place for place, line in enumerate(lines) if line.startswith("Rank: "))
    rows = [" ".join("x" for _ in line.replace(" to ", "-").split()) for line in lines[rule + 1 : last]]
    heads = [" ".join(line.split()) for line in lines[1:rule]]
    return [re.sub(r"[\d,]+", "N", lines[0]), *heads, *rows, " ".join(lines[last:])]


def test_the_readme_shows_a_table_as_the_demo_prints_it() -> None:
    """With numbers of a real run; as many policies as the demo compares, and words as the code has them."""
    shown = README.read_text().partition("<!-- demo table -->")[2].partition("<!-- /demo table -->")[0]
    sample, _, after = shown.partition("```text\n")[2].partition("```")[0].partition("\n\n24 swaps")
    assert "No request failed." in after
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(made_up(dict.fromkeys(steps.POLICIES, 20))[0]))
    assert shape(sample) == shape(console.export_text())
    ranks = [line.split()[:2] for line in sample.splitlines() if re.match(r" *\d+ +\w+ ", line)]
    assert ranks == sorted(ranks, key=lambda each: (int(each[0]), each[1]))
    assert {policy for _, policy in ranks} == set(steps.POLICIES)


def test_each_policy_has_a_style_of_its_own() -> None:
    assert len({style.colour for style in styles_of(steps.POLICIES).values()}) == len(steps.POLICIES)
    assert len(set(styles_of([f"policy {i}" for i in range(40)]).values())) == 40


def test_what_is_written_needs_nothing_else(tmp_path: Path) -> None:
    report, found = made_up(MEAN_MS)
    console = Console(width=200, record=True)
    assert finish(console, report, found, tmp_path, 1.0) is True
    assert (tmp_path / "policies.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "index.html").read_text()
    assert 'src="data:image/png;base64,' in text
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\(|<script""", text)
    assert all(row.policy in text for row in report.rows)
    assert RANKING in text
    assert RANKING in " ".join(console.export_text().split())
    assert json.loads((tmp_path / "results.json").read_text())["succeeded"]


def test_what_failed_is_on_the_page_and_in_the_exit(tmp_path: Path) -> None:
    found = [outcome("wlpr", 30, failed=3000), outcome("random", 50, failed=2)]
    report = make_report(DigitsOutcome(540, 513, {}), found, steps.Plan(), FLEET)
    assert math.isnan(next(row for row in report.rows if row.policy == "wlpr").summary.p99_s)
    assert "95.0% of the digits were right" in report.failures()[0]
    assert finish(Console(), report, found, tmp_path, 1.0) is False
    assert "requests failed under random: {&#x27;UNAVAILABLE&#x27;: 2}" in (tmp_path / "index.html").read_text()
