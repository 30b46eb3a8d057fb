"""Language models on real GPUs: what a step's linear layers take as measured, its attention by a roofline.

The table is `data/llm_step_times.csv`, see `data/README.md`. Attention is in no such table: generating reads all keys
and values once at the device's bandwidth, a prompt's attention runs at its peak in 16 bits. Both are least times.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator.service import fit
from simulator.spec import GeneratingDevice, ServiceTime

STEPS = Path(__file__).parent / "data" / "llm_step_times.csv"
_MEMORY_SHARE = 0.9
"""Of a device's memory, that weights, keys and values take; vLLM's `gpu_memory_utilization`."""
_VALUE_BYTES = 2
"""Of a weight, key or value."""


@dataclass(frozen=True, slots=True)
class _Architecture:
    """Of a model, as its `config.json` has it."""

    parameters: float
    layers: int
    heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class _Accelerator:
    """As its data sheet has it, without sparsity."""

    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops_per_s: float


_ARCHITECTURES = {"Llama-2-7b-hf": _Architecture(6.74e9, 32, 32, 128)}
_ACCELERATORS = {
    "H100": _Accelerator(80e9, 3.35e12, 989e12),
    "A100": _Accelerator(80e9, 2.039e12, 312e12),
    "A40": _Accelerator(48e9, 0.696e12, 149.7e12),
}
"""H100 and A100 are those with SXM and 80 GB."""


@cache
def step_samples() -> dict[tuple[str, str], tuple[tuple[int, ...], tuple[float, ...]]]:
    """Tokens of a step and seconds of its linear layers, as measured, by model and device."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    with STEPS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["model"], row["device"]].append((int(row["tokens"]), float(row["linear_ms"]) * 1e-3))
    return {place: (tuple(tokens for tokens, _ in each), tuple(s for _, s in each)) for place, each in found.items()}


def measured_steps(model: str, device: str) -> ServiceTime:
    """Seconds of a step's linear layers by its tokens.

    Raises:
        ValueError: naming what there is.
    """
    if (model, device) not in step_samples():
        there = "; ".join(f"{name} on {kind}" for name, kind in step_samples())
        raise ValueError(f"steps of {model!r} on {device!r} were not measured; name one of: {there}")
    return fit(*step_samples()[model, device])


def roofline(model: str, device: str, kv_heads: int | None = None) -> GeneratingDevice:
    """Attention and memory of a model that was measured on this device.

    Args:
        model: As in the table.
        device: As in the table.
        kv_heads: Heads of keys and values, where fewer than the model has: grouped-query attention.
    """
    made, device_kind = _ARCHITECTURES[model], _ACCELERATORS[device]
    kv_bytes = 2 * made.layers * (kv_heads or made.heads) * made.head_size * _VALUE_BYTES
    free_bytes = _MEMORY_SHARE * device_kind.memory_bytes - made.parameters * _VALUE_BYTES
    return GeneratingDevice(
        memory_tokens=int(free_bytes / kv_bytes),
        context_s=kv_bytes / device_kind.bandwidth_bytes_per_s,
        # Scores and their sum over values: a multiplication and an addition each.
        attention_s=4 * made.layers * made.heads * made.head_size / device_kind.flops_per_s,
    )
