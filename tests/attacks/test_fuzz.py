"""Some thousand random inputs at every port of a real balancer and a real Envoy; `make fuzz` sends many more."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

attack = importlib.import_module("dev.fuzz.attack")
messages = importlib.import_module("dev.fuzz.messages")
rest = importlib.import_module("dev.fuzz.rest")
rig = importlib.import_module("dev.fuzz.rig")
run = importlib.import_module("dev.fuzz.run")
wire = importlib.import_module("dev.fuzz.wire")


INPUTS = 3_000
SEED = 7


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_stranger_cannot_crash_blind_or_pass_the_balancer_with_any_bytes(tmp_path: Path) -> None:
    said: list[str] = []
    async with rig.target(tmp_path) as target:
        attacked = run.Run(target, SEED, INPUTS, say=said.append)
        report = await attacked.run()
        await attacked.count_handler_errors()
    # Growth is left to `make fuzz`: so few inputs do not fill the caches that a heap has to hold.
    assert not report.findings, "\n".join([*report.findings, *report.culprits, *said])
    assert set(report.answers) == {kind.name for kind in attack.KINDS}


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_stranger_cannot_crash_or_confuse_what_forwards(tmp_path: Path) -> None:
    said: list[str] = []
    async with rig.target(tmp_path, proxied=True) as target:
        attacked = run.Run(target, SEED, INPUTS, attack.FORWARDED, said.append)
        report = await attacked.run()
        await attacked.count_handler_errors()
    assert not report.findings, "\n".join([*report.findings, *report.culprits, *said])
    by_grpc, by_rest = (report.answers[kind.name] for kind in attack.FORWARDED)
    assert by_grpc["OK"] > INPUTS / 20
    assert by_rest["200"] > INPUTS / 20


def test_an_input_can_be_made_again_from_its_number() -> None:
    makers = (
        messages.processing_requests,
        messages.discovery_requests,
        messages.inference,
        messages.alike,
        rest.inference,
        wire.http1_request,
        wire.http2_call,
        wire.http2_frames,
        wire.admin_request,
        messages.fleet_call,
        lambda rng: messages.reports(rng, ("worker-0",)),
        lambda rng: messages.access_logs(rng, ("127.0.0.1:1",), 10),
    )
    for maker in makers:
        for number in range(15):
            kind = attack.KINDS[0]
            first, again = (maker(attack.generator(SEED, kind, number)) for _ in range(2))
            assert first == again
