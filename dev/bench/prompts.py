"""What it costs the balancer to read a prompt, beside Python's JSON reader alone."""

import json
from functools import partial

from balancer.extproc.kserve import HeaderNames
from balancer.extproc.names import CHAT
from balancer.extproc.prompts import TokenShares, prefix_of, read_request
from dev.bench.results import Options, Table, best_us

_SIZES = (1_000, 100_000, 1_000_000)
_REPEATS = 300
_WORDS = "The tide is high when the moon stands over the harbour, and low six hours later. "


def measure(options: Options) -> list[Table]:
    """CPU time of the best of many, for chats of two messages."""
    rows = []
    for size_bytes in _SIZES:
        text = (_WORDS * (size_bytes // len(_WORDS) + 1))[:size_bytes]
        said = [{"role": "system", "content": text}, {"role": "user", "content": "When is it low?"}]
        body, prompt = json.dumps({"model": "m", "messages": said, "stream": True}).encode(), text.encode()
        repeats = options.often(_REPEATS)
        alone_us = best_us(partial(json.loads, body), repeats)
        whole_us = best_us(partial(read_request, {":path": CHAT}, body, HeaderNames(), TokenShares()), repeats)
        hashed_us = best_us(partial(prefix_of, prompt, len(prompt) / 4, 1), repeats)
        rate = f"{len(prompt) / hashed_us / 1e3:.2f}"
        rows.append([f"{size_bytes:,} bytes", f"{whole_us:.0f}", f"{alone_us:.0f}", f"{hashed_us:.0f}", rate])
    columns = ["prompt", "read, µs", "of that JSON, µs", "hashed, µs", "hashed, GB/s"]
    return [Table("A prompt read in the balancer (CPU time)", columns, rows)]
