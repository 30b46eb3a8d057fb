"""Some thousand random inputs at every port of a real balancer and a real Envoy; `make fuzz` sends a hundred thousand."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import support.benchmarks_package  # noqa: F401  # makes `benchmarks` importable

attack = importlib.import_module("benchmarks.fuzz.attack")
rig = importlib.import_module("benchmarks.fuzz.rig")
run = importlib.import_module("benchmarks.fuzz.run")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

INPUTS = 3_000
SEED = 7


async def test_a_stranger_cannot_crash_blind_or_pass_the_balancer_with_any_bytes(tmp_path: Path) -> None:
    said: list[str] = []
    async with rig.target(tmp_path) as target:
        attacked = run.Run(target, SEED, INPUTS, say=said.append)
        report = await attacked.run()
        await attacked.count_handler_errors()
    # Growth is left to `make fuzz`: so few inputs do not fill the caches that a heap has to hold.
    assert not report.findings, "\n".join([*report.findings, *report.culprits, *said])
    assert set(report.answers) == {kind.name for kind in attack.KINDS}


@pytest.mark.parametrize("kind", attack.KINDS, ids=lambda kind: kind.name)
def test_an_input_can_be_made_again_from_its_number(kind: object) -> None:
    first, again = (attack.generator(SEED, kind, 11).randbytes(64) for _ in range(2))
    assert first == again
    assert attack.generator(SEED, kind, 12).randbytes(64) != first
