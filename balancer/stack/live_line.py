"""The line of `balancer up` that says how its requests fare."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
                    console.print(line, markup=False)
                period += 1
                try:
                    await asyncio.wait_for(stop.wait(), _PERIOD_S)
                except TimeoutError:
                    continue


async def _line(session: aiohttp.ClientSession, admin_urls: Sequence[str]) -> str:
    recents = []
    for url in admin_urls:
        try:
            async with session.get(f"{url}/recent", raise_for_status=True) as response:
                recents.append(await response.json())
        except (aiohttp.ClientError, TimeoutError):
            return f"no answer from the balancer at {url}; Envoy picks by itself meanwhile"
    return words_of(recents)


def words_of(recents: Sequence[Mapping[str, Any]]) -> str:
    """What `/recent` of each process says, in a line, and one more for a refused config and for each failing split."""
    p50_ms, p99_ms = math.nan, math.nan
    for recent in recents:
        # Of several processes the slowest is shown: each sees a share of the same fleet.
        p50_ms = _larger(p50_ms, recent["p50_s"])
        p99_ms = _larger(p99_ms, recent["p99_s"])
    rate_per_s, errors = (sum(recent[name] for recent in recents) for name in ("rate_per_s", "errors"))
    policy, refused = recents[-1]["policy"], recents[-1]["config_refused"]
    latencies = f"p50 {p50_ms:.1f} ms   p99 {p99_ms:.1f} ms   " if math.isfinite(p50_ms) else ""
    notes = [f"config refused, the last good one stays: {'; '.join(refused)}"] if refused else []
    line = f"{rate_per_s:8.1f} requests/s   {latencies}errors {errors}   policy {policy}"
    return "\n".join([line, *notes, *_failed_by_split([split for recent in recents for split in recent["splits"]])])


def _failed_by_split(splits: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each split model of which requests failed, of all processes together. A version that no worker has is
    to all other figures the client's error."""
    requests: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    returned = {}
    for split in splits:
        for each in split["versions"]:
            requests[split["model"], each["version"]] += each["requests"]
            errors[split["model"], each["version"]] += each["errors"]
        if split["returned"]:
            returned[split["model"]] = split["versions"][0]["version"]
    found: dict[str, list[str]] = {}
    for (model, version), failed in errors.items():
        if failed:
            words = f"{failed} of {requests[model, version]} requests of version {version} failed"
            found.setdefault(model, []).append(words)
    for model, old in returned.items():
        found.setdefault(model, []).append(f"all go to version {old} again")
    return [f"split {model}: {', '.join(words)}" for model, words in found.items()]


def _larger(known_ms: float, new_s: float | None) -> float:
    return known_ms if new_s is None else max(1000 * new_s, 0.0 if math.isnan(known_ms) else known_ms)
