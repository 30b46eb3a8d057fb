"""What keeps shared memory alive goes on whatever fails."""

import asyncio
from unittest.mock import MagicMock

from balancer.server.native.front import NativeFront


async def test_a_sign_of_life_that_fails_at_once_is_given_again() -> None:
    router, recorder, stop = MagicMock(), MagicMock(), asyncio.Event()

    def beat() -> None:
        if router.state.beat.call_count == 1:
            raise OSError("on purpose")
        stop.set()

    router.state.beat.side_effect = beat
    front = NativeFront(router, MagicMock(), recorder)
    async with asyncio.timeout(30):
        await front.run(stop, lambda: 0.0, lambda: True, lambda: False)
    recorder.internal_errors.caught.assert_called_once()
