import asyncio
from pathlib import Path

import pytest
from support.fake_triton import FakeTriton, serving

from balancer.config import config
from tools.demo.stack import DemoError, DemoStack, write_policy
from tools.demo.steps import compare_policies
from tools.demo.traffic import Plan
from tools.load.result import summarise
from tools.load.runner import Progress


class FakeStack(DemoStack):
    """No stack: the listener of a fake Triton, and a file that takes effect when it is written."""

    def __init__(self, directory: Path, url: str) -> None:
        super().__init__(directory, workers=1, policy="random")
        self._url = url
        self.swaps: list[str] = []

    @property
    def url(self) -> str:
        return self._url

    async def swap(self, policy: str) -> float:
        write_policy(self.config_path, policy)
        self.swaps.append(policy)
        return 0.01


async def test_policies_take_turns_under_equal_traffic(tmp_path: Path) -> None:
    plan = Plan(policies=("wlpr", "random"), rounds=2, window_s=0.5, settle_s=0.3, rate_per_s=100)
    told: list[tuple[int, str]] = []

    def show(turn: int, policy: str, progress: Progress) -> None:
        told.append((turn, policy))

    async with serving(FakeTriton()) as url:
        stack = FakeStack(tmp_path, url)
        first, second = await compare_policies(stack, plan, show)
    assert (first.policy, second.policy) == ("wlpr", "random")
    assert sorted(stack.swaps) == ["random", "random", "wlpr", "wlpr"]
    assert len(first.result) == len(second.result) > 0
    assert sorted(first.result.scheduled_s) == pytest.approx(sorted(second.result.scheduled_s))
    assert min(first.result.scheduled_s) >= plan.settle_s
    assert len(first.block) == len(first.result)
    assert first.swaps_s == (0.01, 0.01)
    assert summarise(first.result).errors == {}
    assert {turn for turn, _ in told} == {0, 1, 2, 3}


async def test_a_swap_that_fails_ends_the_comparison(tmp_path: Path) -> None:
    class RefusingFakeStack(FakeStack):
        async def swap(self, policy: str) -> float:
            raise DemoError("refused")

    async with serving(FakeTriton()) as url:
        plan = Plan(policies=("wlpr",), rounds=1, window_s=0.2, settle_s=0.2, rate_per_s=50)
        with pytest.raises(DemoError, match="refused"):
            await compare_policies(RefusingFakeStack(tmp_path, url), plan, lambda *_: None)


def test_the_file_names_the_policy_and_is_a_valid_config(tmp_path: Path) -> None:
    path = tmp_path / "balancer.yaml"
    write_policy(path, "wlpr")
    write_policy(path, "prequal")
    assert config.load(path).policy.name == "prequal"
    assert [file.name for file in tmp_path.iterdir()] == ["balancer.yaml"]


class FailingFakeStack(DemoStack):
    """Runs a program that says why and ends."""

    @property
    def command(self) -> list[str]:
        return ["sh", "-c", "echo the reason; exit 3"]


async def test_a_stack_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"(?s)ended with 3.*the reason"):
        async with FailingFakeStack(tmp_path, workers=1, policy="random"):
            pass


class HangingFakeStack(DemoStack):
    """Runs a program that never gets ready, and ends when it is interrupted."""

    @property
    def command(self) -> list[str]:
        return ["sh", "-c", f"touch {self.config_path}.started; exec sleep 600"]


async def test_cancelling_while_it_starts_stops_the_process(tmp_path: Path) -> None:
    stack = HangingFakeStack(tmp_path, workers=1, policy="random")

    async def start() -> None:
        async with stack:
            pass

    task = asyncio.create_task(start())
    while not Path(f"{stack.config_path}.started").exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stack._process is not None
    assert stack._process.returncode is not None
