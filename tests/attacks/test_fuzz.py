"""Some thousand random inputs at every port of a real balancer and a real Envoy; `make fuzz` sends many more."""

from pathlib import Path

import pytest
from fuzz import inputs, wire
from fuzz.attack import Attack, generator
from fuzz.kinds import KINDS, KINDS_OF
from fuzz.target import target

SEED = 7


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("frontend", "count", "good"),
    [
        ("pick", 3000, {"ext_proc": "OK", "access log": "OK"}),
        ("native", 1200, {"HTTP/1": "200", "gRPC": "h2 200"}),
        ("proxy", 3000, {"forwarded gRPC": "OK", "forwarded REST": "200"}),
    ],
)
async def test_a_stranger_cannot_crash_blind_or_pass_the_balancer_with_any_bytes(
    tmp_path: Path, frontend: str, count: int, good: dict[str, str]
) -> None:
    """`good`: answers that some inputs get, as it is the balancer that is tried, and not the way to it."""
    lines: list[str] = []
    async with target(tmp_path, frontend) as attacked:
        attack = Attack(attacked, SEED, lines.append)
        # Growth is left to `make fuzz`: so few inputs do not fill the caches that a heap has to hold.
        await attack.run(count, KINDS_OF[frontend])
    assert not attack.findings, "\n".join(lines)
    for kind, answer in good.items():
        assert attack.answers[kind][answer] > attack.answers[kind].total() / 20


def test_an_input_can_be_made_again_from_its_number() -> None:
    workers = ["worker-0"]
    makers = (
        *(inputs.processing, inputs.discovery, inputs.inference, inputs.rest_inference, inputs.fleet_call),
        *(lambda rng: inputs.reports(rng, workers), lambda rng: inputs.access_log(rng, ["127.0.0.1:1"])),
        *(wire.http1_request, wire.http2_call, wire.http2_frames, wire.admin_request),
    )
    for maker in makers:
        for number in range(15):
            first, again = (maker(generator(SEED, KINDS[0], number)) for _ in range(2))
            assert first == again
