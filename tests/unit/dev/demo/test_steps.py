from pathlib import Path

import pytest
from support.fake_triton import FakeTriton, serving

from balancer.errors import OperatorError
from balancer.load.result import summarise
from balancer.load.runner import Progress
from balancer.stack.stack import OwnStack
from dev.demo.steps import compare_policies
from dev.demo.traffic import Plan


class FakeStack(OwnStack):
    """No stack: the listener of a fake Triton, and swaps that take effect at once."""

    def __init__(self, directory: Path, url: str) -> None:
        super().__init__(directory)
        self._url = url
        self.swaps: list[str] = []

    @property
    def url(self) -> str:
        return self._url

    async def swap(self, policy: str) -> float:
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
            raise OperatorError("refused")

    async with serving(FakeTriton()) as url:
        plan = Plan(policies=("wlpr",), rounds=1, window_s=0.2, settle_s=0.2, rate_per_s=50)
        with pytest.raises(OperatorError, match="refused"):
            await compare_policies(RefusingFakeStack(tmp_path, url), plan, lambda *_: None)
