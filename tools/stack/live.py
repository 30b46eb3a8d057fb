"""The live line of `balancer up`: what the fleet does right now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import aiohttp
from rich.console import Console
from rich.live import Live
from rich.text import Text

_PERIOD_S = 1.0
_TIMEOUT_S = 5.0
_QUIET_PERIODS = 10
"""Where the output is no terminal, a line every so many periods."""


async def live_line(console: Console, admin_urls: Sequence[str], stop: asyncio.Event) -> None:
    """Show rate, p50, p99 and errors of all balancer processes together, until `stop` is set."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            period = 0
            while not stop.is_set():
                line = await _line(session, admin_urls)
                if console.is_terminal:
                    live.update(Text(line), refresh=True)
                elif period % _QUIET_PERIODS == 0:
                    console.print(line)
                period += 1
                try:
                    await asyncio.wait_for(stop.wait(), _PERIOD_S)
                except TimeoutError:
                    continue


async def _line(session: aiohttp.ClientSession, admin_urls: Sequence[str]) -> str:
    refused: Sequence[str] = ()
    rate_per_s, errors, p50_ms, p99_ms = 0.0, 0, math.nan, math.nan
    policy = ""
    for url in admin_urls:
        try:
            async with session.get(f"{url}/recent", raise_for_status=True) as response:
                recent = await response.json()
        except (aiohttp.ClientError, TimeoutError):
            return f"no answer from the balancer at {url}; Envoy picks by itself meanwhile"
        rate_per_s += recent["rate_per_s"]
        errors += recent["errors"]
        policy = recent["policy"]
        refused = recent["config_refused"] or ()
        # Of several processes the slowest is shown: each sees a share of the same fleet.
        p50_ms = _larger(p50_ms, recent["p50_s"])
        p99_ms = _larger(p99_ms, recent["p99_s"])
    latencies = f"p50 {p50_ms:.1f} ms   p99 {p99_ms:.1f} ms   " if math.isfinite(p50_ms) else ""
    trouble = f"\nconfig refused, the last good one stays: {'; '.join(refused)}" if refused else ""
    return f"{rate_per_s:8.1f} requests/s   {latencies}errors {errors}   policy {policy}{trouble}"


def _larger(known_ms: float, new_s: float | None) -> float:
    return known_ms if new_s is None else max(1000 * new_s, 0.0 if math.isnan(known_ms) else known_ms)
