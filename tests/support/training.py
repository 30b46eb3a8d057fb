"""Small trainings by `balancer train`, and what they made."""

from pathlib import Path

from click.testing import CliRunner, Result

from balancer.cli import main as cli
from policies.learned.artifact import Artifact, read_artifact

SMALL = (
    *("--scenarios", "stale-reports", "--scenarios", "homogeneous-steady", "--iterations", "24"),
    *("--set", "random_share=0", "--set", "pairs=4", "--set", "tasks=2", "--set", "requests=80"),
    *("--set", "evaluate_every=8", "--set", "validation_episodes=4", "--set", "episode_requests=80"),
    *("--set", "report_seeds=2", "--set", "range_episodes=4"),
)
FOR_ONE_FLEET = (
    *("--iterations", "6", "--set", "evaluate_every=2", "--set", "candidates=4", "--set", "requests=150"),
    *("--set", "validation_episodes=10", "--set", "episode_requests=150"),
    *("--set", "report_seeds=2", "--set", "range_episodes=4"),
)
OF_A_FLEET = ("--fleet", "several-models", *FOR_ONE_FLEET)


def train(out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["train", "--out", str(out), *arguments])


def policy(out: Path, name: str = "policy.npz") -> Artifact:
    return read_artifact((out / name).read_bytes(), name)


def check_same(one: Artifact, other: Artifact) -> None:
    """All but what the clock, the machine, and whoever edits the checkout meanwhile, have a part in."""
    assert one.digest == other.digest
    records = [{k: value for k, value in each.record.items() if k not in ("made", "git")} for each in (one, other)]
    assert records[0] == records[1]
