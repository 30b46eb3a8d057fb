"""The example does what it says: it trains, its file serves through the router."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

from balancer.kernel.settings import Settings
from balancer.scheduler.events import WorkerAdded
from balancer.scheduler.router import Router
from policies.base import Request

SCRIPT = Path(__file__).parents[3] / "examples" / "train_your_own.py"


def test_it_is_short_enough_to_be_read() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 60


def test_it_trains_and_what_it_wrote_serves(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    gain = float(done.stdout.split(":")[1].split()[0])
    assert gain < 0.95, done.stdout
    mine = runpy.run_path(str(SCRIPT))["Mine"](file=str(tmp_path / "mine.npy"))
    policy = mine.with_files(lambda name: Path(name).read_bytes())
    router = Router(policy, Settings(reports_required=False))
    for name in ("a", "b"):
        router.observe(WorkerAdded(name), 0.0)
    router.tick(0.0)
    decision = router.route(Request("m"), 0.1)
    assert decision.policy == "mine"
    assert not router.failures
