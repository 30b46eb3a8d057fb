"""The tables of caches: what is told of a run, and that it says what the simulator's caches do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from experiments.by_hand import BEGIN, END
from experiments.caches import __main__ as command
from experiments.caches.__main__ import BEFORE, main, told
from experiments.caches.fleets import Case, groups
from policies import BUILTIN


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    return groups()


def test_a_saving_is_learned_where_there_is_one_and_shortens_requests(cases: dict[str, list[Case]]) -> None:
    (case,) = (each for each in cases["One balancer"] if each.name == "cache-affinity, load 0.9")
    before, after = (told(case, policy, 2, 5000) for policy in (BEFORE, BUILTIN["expected_latency"]()))
    assert (after.saved > 0.2).all()
    assert (after.mean_ms < before.mean_ms).all()


def test_where_keys_save_nothing_the_policy_is_the_same_for_any_factor(cases: dict[str, list[Case]]) -> None:
    case = cases["Where keys save nothing"][0]
    before, after = (told(case, policy, 2, 3000) for policy in (BEFORE, BUILTIN["expected_latency"]()))
    assert not after.saved.any()
    np.testing.assert_array_equal(before.mean_ms, after.mean_ms)


def test_requests_are_spread_over_all_balancers(cases: dict[str, list[Case]]) -> None:
    case = cases["Several balancers"][-1]
    assert case.balancers == 4
    assert len(set(case.scenario.arrivals(0, 200).balancer.tolist())) == 4


def test_the_command_keeps_what_was_written_by_hand(
    tmp_path: Path, cases: dict[str, list[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "groups", lambda: {"One balancer": cases["One balancer"][:2]})
    page = tmp_path / "caches.md"
    page.write_text(f"{BEGIN}\nWords.\n{END}\n")
    done = CliRunner().invoke(main, ["--seeds", "2", "--requests", "500", "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert "Words." in page.read_text()
    assert page.read_text().count("\n| sessions") == 2
