"""`balancer replay`: decide again what a decision log says was decided."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog
from policies.base import Policy
from simulator.commands import inputs
from simulator.compare import text
from simulator.replay import ReplayResult
from simulator.replay import replay as replay_log

_EPILOG = """\b
Examples:
  balancer replay decisions/                                   are the decisions the same, bit for bit?
  balancer replay decisions/ --policy wlpr                     how often would that have picked the same?
  balancer replay decisions/ --policy power_of_two:choices=3 --json replay.json

LOG is the folder that decision_log.folder of the config names, or one file of it.
"""


_ROLES = {
    "in_force": "{}",
    "hash": "router's {} (keys)",
    "baseline": "{} (guard's baseline)",
    "rollout": "{} (rolled out)",
}


@click.command(epilog=_EPILOG)
@click.argument("log", type=click.Path(path_type=Path, exists=True))
@inputs.policy_option("given", "Decide by this policy instead of the one that was in force.")
@inputs.file_option("--json", "Write the findings here too.")
@click.pass_context
def replay(ctx: click.Context, log: Path, given: str | None, json_path: Path | None) -> None:
    """Decide again, in the simulator's batches, what the decision LOG says was decided.

    Exits with 1 where a decision comes out otherwise than recorded, unless another policy is asked.
    """
    policy = None if given is None else inputs.parse_policy(given)
    read = read_log(log)
    result = replay_log(read, policy)
    findings = _findings(read, result, policy)
    if json_path is not None:
        json_path.write_text(json.dumps(findings, indent=2) + "\n")
    _show(Console(), read, result, findings, policy)
    ctx.exit(1 if policy is None and not result.exact else 0)


def _findings(log: DecisionLog, result: ReplayResult, policy: Policy | None) -> dict[str, Any]:
    joined = log.joined()
    measured = joined.latency_s[np.isfinite(joined.latency_s)]
    return {
        "policy": None if policy is None else {"name": policy.name, "options": policy.options()},
        "processes": [dataclasses.asdict(run) for run in log.runs],
        "decisions": len(log),
        "refusals": len(log.refusals),
        "outcomes": len(log.outcomes),
        "latency_mean_s": float(measured.mean()) if len(measured) else None,
        "cut": log.cut,
        "exact": result.exact if policy is None else None,
        "agreement": None if math.isnan(result.agreement) else result.agreement,
        "mean_probability": float(compared.mean()) if len(compared := result.probability[~result.left_out]) else None,
        "left_out": int(result.left_out.sum()),
        "compared": [dataclasses.asdict(compared) for compared in result.compared],
        "mismatches": [dataclasses.asdict(mismatch) for mismatch in result.mismatches] if policy is None else [],
        "changed": list(result.changed),
    }


def _show(
    console: Console, log: DecisionLog, result: ReplayResult, findings: dict[str, Any], policy: Policy | None
) -> None:
    for cut in log.cut:
        click.echo(f"{cut}; read up to there", err=True)
    title = "Decided again as recorded" if policy is None else f"Decided again by {policy.name}"
    columns = ("probabilities", "picks", "fallbacks") if policy is None else ("picks",)
    table = text.table(title, ["asked in production", "decisions", *(f"same {column}" for column in columns)])
    for compared in result.compared:
        decider = _ROLES[compared.role].format(compared.policy)
        same = (f"{getattr(compared, column):,}" for column in columns)
        table.add_row(decider, f"{compared.decisions:,}", *same)
    console.print(table)
    console.print(
        f"{len(log):,} decisions, {len(log.refusals):,} refusals and {len(log.outcomes):,} outcomes; "
        f"processes recorded: {len(log.runs)}."
    )
    for changed in result.changed:
        console.print(f"Note: {changed}.", markup=False)
    if findings["left_out"]:
        console.print(
            f"Left out: {findings['left_out']:,} decisions that the policy in force did not make (a guard's baseline, "
            "a rollout)."
        )
    if policy is not None and findings["agreement"] is not None:
        console.print(
            f"The same worker in {result.agreement:.1%} of the decisions; it gives the recorded picks a mean "
            f"probability of {findings['mean_probability']:.3f}."
        )
    elif policy is None:
        _show_verdict(console, log, result)


def _show_verdict(console: Console, log: DecisionLog, result: ReplayResult) -> None:
    if result.exact:
        console.print("All are the same, bit for bit.")
        return
    console.print("Not the same; the first differences:")
    for mismatch in result.mismatches:
        decision = log.decisions[mismatch.decision]
        where = f"process {log.runs[decision.run].process}, number {decision.request.number}"
        console.print(f"  {where}: {mismatch.what}", f"    recorded {mismatch.recorded}", sep="\n", markup=False)
        console.print(f"    replayed {mismatch.replayed}", markup=False)
