"""The config file is edited while requests flow."""

from __future__ import annotations

from itertools import groupby

import pytest
from support import fronts
from support.load import steady_load
from support.stack import Stack
from support.waiting import eventually

from policies import BUILTIN

pytestmark = pytest.mark.integration

POLICIES = [name for name in BUILTIN if name not in ("round_robin", "learned")] + ["round_robin"]
"""The one in force at the start comes last."""
BAD_FILES = [
    "",
    "policy: {name: no_such_policy}\n",
    "policy: {name: wlpr, options: {no_such_option: 1}}\n",
    "policy: [not, a, mapping\n",
    "limits: {max_pending_per_worker: -1}\n",
]


def decided(stack: Stack) -> list[str]:
    """The policy of every decision so far, in order."""
    return [r["policy"] for r in stack.log.so_far() if r["logger"] == "balancer.decisions"]


async def decides(stack: Stack, policy: str) -> None:
    await eventually(lambda: decided(stack)[-1:] == [policy], f"decisions by {policy}")


@fronts.frontend("native", "pick", "proxy")
async def test_ten_swaps_under_load_fail_no_request_and_each_is_in_force(stack: Stack) -> None:
    async with steady_load(stack.url) as load:
        for policy in POLICIES:
            stack.write_config({"name": policy})
            await decides(stack, policy)
    assert not load.failures()
    # Every policy decided from its swap to the next: none came back once it was replaced.
    assert [policy for policy, _ in groupby(decided(stack))] == ["round_robin", *POLICIES]
    state = await stack.get("/config")
    assert (state["applied"], state["refused"]) == (10, 0)


@fronts.frontend("proxy", "pick", "native")
async def test_bad_files_between_swaps_are_refused_and_nothing_is_lost(stack: Stack) -> None:
    async with steady_load(stack.url) as load:
        for refused, (policy, bad) in enumerate(zip(POLICIES, BAD_FILES, strict=False), start=1):
            stack.write_text(bad)
            await eventually(
                lambda: stack.get("/config"),
                f"file {refused} refused",
                until=lambda state, refused=refused: state["refused"] == refused,
            )
            state = await stack.get("/config")
            assert state["last_error"]["problems"]
            stack.write_config({"name": policy})
            await decides(stack, policy)
    assert not load.failures()
    assert [policy for policy, _ in groupby(decided(stack))] == ["round_robin", *POLICIES[: len(BAD_FILES)]]
    state = await stack.get("/config")
    assert state["newest_file_in_force"]
    assert state["last_error"] is None
