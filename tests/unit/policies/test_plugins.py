import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import support
from support.views import make_view, probabilities

from balancer.config.policy_options import PolicyNameClash, catalogue
from policies import BUILTIN

EXAMPLE = Path(support.__file__).parent / "example_plugin"


@pytest.fixture(autouse=True)
def _forget_imported_plugins() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("example_policy", "plugin_")):
            del sys.modules[name]


def install(folder: Path, distribution: str, entry_points: dict[str, str], **modules: str) -> None:
    """Lay out what pip would: modules, and metadata with entry points."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("[balancer.policies]\n" + "".join(lines))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)


def policy_source(name: str, body: str = "") -> str:
    return f'''
import dataclasses
from policies.base import Policy, uniform_over

@dataclasses.dataclass(frozen=True)
class Mine(Policy):
    name = "{name}"
    summary = "For a test."
    source = "A test."
{body}
    def probabilities(self, request, fleet):
        return uniform_over(fleet.eligible)
'''


def test_without_plugins_there_are_the_built_in_ones() -> None:
    found = catalogue()
    assert list(found.policies)[: len(BUILTIN)] == list(BUILTIN)
    assert {found.distributions[name] for name in BUILTIN} == {"balancer"}


def test_an_entry_point_adds_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "freshest_report" not in catalogue().policies
    monkeypatch.syspath_prepend(EXAMPLE)
    found = catalogue()
    assert list(found.policies) == [*BUILTIN, "freshest_report"]
    assert found.distributions["freshest_report"] == "example-policy"
    assert found.unavailable == ()
    policy = found.policies["freshest_report"](step_s=0.02)  # type: ignore[call-arg]  # known at run time only
    assert probabilities(policy, make_view(report_age_s=[0.05, 0.01, 0.0, np.inf])) == [0, 0.5, 0.5, 0]
    with pytest.raises(ValueError, match=r"policy freshest_report: option step_s is 0, must be above 0.0"):
        found.policies["freshest_report"](step_s=0)  # type: ignore[call-arg]  # known at run time only


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'plugin_a'"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("class Other: pass", "has no attribute 'Mine'"),
        ("Mine = 7", "7 is not a subclass of policies.base.Policy"),
        ("from policies import Policy\nclass Mine(Policy): pass", "does not implement probabilities"),
        (policy_source("other"), 'its name is "other"; call the entry point so too'),
        (policy_source("mine", "    size: int = 3"), "options size are not declared with"),
        (policy_source("mine").replace('summary = "For a test."', ""), "does not set summary"),
        (policy_source("mine", "    def __post_init__(self): 1 / 0"), "ZeroDivisionError"),
    ],
)
def test_a_broken_plugin_is_named_and_takes_nothing_down(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: str | None,
    reason: str,
) -> None:
    install(tmp_path, "broken-policies", {"mine": "plugin_a:Mine"}, **({} if source is None else {"plugin_a": source}))
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.ERROR, logger="balancer.config.policy_options"):
        found = catalogue()
    assert list(found.policies) == list(BUILTIN)
    (broken,) = found.unavailable
    assert broken.name == "mine"
    assert broken.distribution == "broken-policies"
    assert broken.entry_point == "plugin_a:Mine"
    assert reason in broken.reason
    for part in ('"mine"', "broken-policies", "plugin_a:Mine", reason):
        assert part in caplog.text


def test_a_broken_plugin_beside_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points = {"bad": "plugin_bad:Mine", "good": "plugin_good:Mine"}
    install(tmp_path, "mixed", entry_points, plugin_bad="1 / 0", plugin_good=policy_source("good"))
    monkeypatch.syspath_prepend(tmp_path)
    found = catalogue()
    assert list(found.policies) == [*BUILTIN, "good"]
    assert [policy.name for policy in found.unavailable] == ["bad"]


def test_a_built_in_name_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "taker", {"wlpr": "plugin_a:Mine"}, plugin_a=policy_source("wlpr"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        PolicyNameClash, match=r'"wlpr" is claimed by distributions balancer and taker .* uninstall taker'
    ):
        catalogue()


def test_two_plugins_cannot_share_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for distribution in ("one", "two"):
        install(
            tmp_path / distribution,
            distribution,
            {"mine": f"plugin_{distribution}:Mine"},
            **{f"plugin_{distribution}": policy_source("mine")},
        )
        monkeypatch.syspath_prepend(tmp_path / distribution)
    with pytest.raises(PolicyNameClash, match=r"distributions one and two .* uninstall one of them"):
        catalogue()
