"""The rules are what Prometheus reads, name what is exported, fire when they should, and have a runbook."""

import re
import shutil
import subprocess
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from support.exported import PROMETHEUS_OWN, TARGET_LABELS, dashboard, declared, labels_of, problems, selectors

from balancer.extproc.responses import By
from balancer.native.layouts import COUNTS
from balancer.server.logs import Reason
from balancer.server.metrics.metrics import _STATUSES

ROOT = Path(__file__).resolve().parents[3]
RULES = [ROOT / "deploy" / "observability" / name for name in ("slo.yaml", "alerts.yaml")]
TESTS = sorted((Path(__file__).parent / "promtool").glob("*.yaml"))
RUNBOOK = ROOT / "docs" / "operate" / "alerts.md"
VALUES = {
    ("balancer_requests_total", "status"): _STATUSES,
    ("balancer_refusals_total", "reason"): {*get_args(Reason), "invalid"} - {"picked"},
    ("balancer_aborted_requests_total", "by"): {*get_args(By)} - {""},
    ("balancer_tokens_total", "kind"): {"prompt", "cached", "output"},
    ("balancer_native_requests_total", "result"): set(COUNTS),
    # Written where they are counted: `balancer/server/tally.py`, `files.py`, `router.py`, `fleet.py`, `gatekeeper.py`.
    ("balancer_fallbacks_total", "cause"): {"no_pick", "retried"},
    ("balancer_decision_log_lines_total", "result"): {"written", "dropped"},
    ("balancer_outcomes_total", "result"): {"matched", "unmatched", "expired"},
    ("balancer_reports_total", "result"): {"accepted", "lost", "late", "unknown_worker", "models_left_out"},
    ("balancer_refused_inputs_total", "message"): {"request", "explain", "report", "outcome"},
    ("balancer_request_duration_seconds_bucket", "le"): {"0.5", "1.0", "2.0"},
    ("gen_ai_server_time_to_first_token_seconds_bucket", "le"): {"0.5", "1.0", "2.5"},
}
"""Of labels by which rules and dashboard choose."""


def rules() -> list[dict[str, Any]]:
    """All rules, in order."""
    groups = chain.from_iterable(yaml.safe_load(path.read_text())["groups"] for path in RULES)
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


@cache
def known() -> dict[str, frozenset[str]]:
    """What a rule or a query may name: what is exported, and what is recorded."""
    names = declared() | PROMETHEUS_OWN
    for rule in rules():
        if "record" in rule:
            names[rule["record"]] = labels_of(rule["expr"], names)
    return names


def expressions() -> dict[str, str]:
    """Of rules and dashboard, by a name for each."""
    of_rules = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()}
    asked = [(panel["title"], target) for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return of_rules | {f"{title}: {target['legendFormat']}": target["expr"] for title, target in asked}


def promtool(*arguments: str | Path) -> str:
    """What it prints; it must find no fault."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    ran = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_prometheus_reads_them() -> None:
    assert "FAILED" not in promtool("check", "rules", *RULES)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    promtool("test", "rules", path)


def test_each_alert_is_seen_to_fire() -> None:
    tests = list(chain.from_iterable(yaml.safe_load(path.read_text())["tests"] for path in TESTS))
    told = [each for test in tests for each in test.get("alert_rule_test", ())]
    asked = [each for test in tests for each in test.get("promql_expr_test", ())]
    fired = {each["alertname"] for each in told if each["exp_alerts"]}
    samples = chain.from_iterable(each["exp_samples"] for each in asked)
    fired |= {name for sample in samples for name in re.findall(r'alertname="(\w+)"', sample["labels"])}
    assert fired == {rule["alert"] for rule in alerts()}


def test_all_is_well_with_something_in_each_metric() -> None:
    (test,) = yaml.safe_load(next(path for path in TESTS if path.stem == "healthy").read_text())["tests"]
    there = {selectors(each["series"])[0][0] for each in test["input_series"]}
    assert there == {name for rule in rules() for name, _ in selectors(rule["expr"]) if ":" not in name}


def test_what_is_asked_for_is_exported() -> None:
    names = known()
    assert [f"{name}: {each}" for name, expr in expressions().items() for each in problems(expr, names)] == []


@pytest.mark.parametrize(
    "expr",
    [
        "rate(balancer_request_total[5m])",
        'balancer_requests_total{modle="m"}',
        'sum(balancer_requests_total{status="grpc_0",wrker="w"})',
        "sum by (policy) (balancer_requests_total)",
        "up / on(hash) up",
        "balancer:request:rate5m",
    ],
)
def test_what_is_not_exported_is_noticed(expr: str) -> None:
    assert len(problems(expr, known())) == 1


def test_values_of_labels_are_those_that_are_exported() -> None:
    for name, expr in expressions().items():
        for metric, matchers in selectors(expr):
            for label, (operator, value) in matchers.items():
                if value.startswith("$") or label in TARGET_LABELS or metric in PROMETHEUS_OWN or not value:
                    continue
                for pattern in alternatives(value) if "~" in operator else [re.escape(value)]:
                    matched = [each for each in VALUES[metric, label] if re.fullmatch(pattern, each)]
                    assert matched, f"{name}: {metric} has no {label} {pattern!r}"


def alternatives(pattern: str) -> list[str]:
    """Those of a regular expression without nested groups, each in full: `a_(b|c)|d` is a_b, a_c, d."""
    found = []
    for part in re.findall(r"[^|(]+(?:\([^)]*\))?", pattern):
        head, _, inner = part.partition("(")
        found += [head + each for each in inner.rstrip(")").split("|")]
    return found


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_somebody_needs_to_know(rule: dict[str, Any]) -> None:
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    there = labels_of(rule["expr"], known())
    for text in rule["annotations"].values():
        named = set(re.findall(r"\$labels\.(\w+)", text))
        assert named <= there | {"alertname"}, f"{named - there} is no label of it"
    assert rule["annotations"]["runbook"] == f"docs/operate/alerts.md#{rule['alert'].lower()}"


def test_each_alert_has_a_paragraph_and_each_paragraph_an_alert() -> None:
    text = RUNBOOK.read_text()
    paragraphs = re.findall(r"^### (Balancer\w+)\n\n(.+)", text, re.MULTILINE)
    assert sorted(name for name, _ in paragraphs) == sorted(rule["alert"] for rule in alerts())
    linked = set(re.findall(r"\]\(#(\w+)\)", text))
    assert linked <= {name.lower() for name, _ in paragraphs}


def test_the_dashboard_s_queries_are_promql(tmp_path: Path) -> None:
    variables = [variable["name"] for variable in dashboard()["templating"]["list"]]
    exprs = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    exprs += [annotation["expr"] for annotation in dashboard()["annotations"]["list"]]
    wrapped = []
    for number, expr in enumerate(exprs):
        assert set(re.findall(r"\$(\w+)", expr)) <= {*variables, "__rate_interval"}
        plain = re.sub(r"\$\w+", "x", expr.replace("$__rate_interval", "5m"))
        wrapped.append({"record": f"query:{number}", "expr": plain})
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": wrapped}]}))
    assert f"{len(exprs)} rules found" in promtool("check", "rules", path)
