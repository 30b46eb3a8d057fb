"""The config file is edited while requests flow."""

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
async def test_swaps_with_bad_files_between_fail_no_request_and_each_is_in_force(stack: Stack) -> None:
    async with steady_load(stack.url) as load:
        for number, policy in enumerate(POLICIES):
            if number < len(BAD_FILES):
                stack.write_text(BAD_FILES[number])
                state = await eventually(
                    lambda: stack.get("/config"),
                    f"file {number} refused",
                    until=lambda state, number=number: state["refused"] == number + 1,
                )
                assert state["last_error"]["problems"]
            stack.write_config({"name": policy})
            await decides(stack, policy)
    assert not load.failures()
    # Every policy decided from its swap to the next: none came back once it was replaced.
    assert [policy for policy, _ in groupby(decided(stack))] == ["round_robin", *POLICIES]
    state = await stack.get("/config")
    assert (state["applied"], state["refused"]) == (len(POLICIES), len(BAD_FILES))
    assert state["newest_file_in_force"]
    assert state["last_error"] is None
