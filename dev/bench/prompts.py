"""What it costs the balancer to read a prompt, beside Python's JSON reader alone."""

import json
import time
from collections.abc import Callable
from functools import partial

from balancer.extproc.kserve import HeaderNames
from balancer.extproc.names import CHAT
from balancer.extproc.openai import TokenShares, prefix_of, read_request
from dev.bench.results import Options, Table

_SIZES = (1_000, 100_000, 1_000_000)
_DURATION_S = 1.0
_WORDS = "The tide is high when the moon stands over the harbour, and low six hours later. "


def measure(options: Options) -> list[Table]:
    """CPU time of the best of many, for chats of two messages."""
    rows = []
    for size_bytes in _SIZES:
        text = (_WORDS * (size_bytes // len(_WORDS) + 1))[:size_bytes]
        said = [{"role": "system", "content": text}, {"role": "user", "content": "When is it low?"}]
        body, prompt = json.dumps({"model": "m", "messages": said, "stream": True}).encode(), text.encode()
        duration_s = options.seconds(_DURATION_S)
        alone_us = _best_us(partial(json.loads, body), duration_s)
        whole_us = _best_us(partial(read_request, {":path": CHAT}, body, HeaderNames(), TokenShares()), duration_s)
        hashed_us = _best_us(partial(prefix_of, prompt, len(prompt) / 4, "m"), duration_s)
        rate = f"{len(prompt) / hashed_us / 1e3:.2f}"
        rows.append([f"{size_bytes:,} bytes", f"{whole_us:.0f}", f"{alone_us:.0f}", f"{hashed_us:.0f}", rate])
    columns = ["prompt", "read, µs", "of that JSON, µs", "hashed, µs", "hashed, GB/s"]
    return [Table("A prompt read in the balancer (CPU time)", columns, rows)]


def _best_us(work: Callable[[], object], duration_s: float) -> float:
    best_s, until_s = float("inf"), time.monotonic() + duration_s
    while time.monotonic() < until_s:
        before_s = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - before_s)
    return best_s * 1e6
