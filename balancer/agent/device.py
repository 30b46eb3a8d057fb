"""The devices of a worker: kind, memory and utilisation, from NVML where it is there."""

import asyncio
import logging
import math
import os
import re
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

_PERIOD_S = 0.5
"""NVML's own gauges are no fresher (1 to 6 Hz)."""
_KIND = re.compile(r"^(?:NVIDIA |Tesla |GRID )*([A-Z]{1,2}\d+[A-Za-z]*)\b")


@dataclass(frozen=True, slots=True)
class DeviceState:
    kind: str = ""
    """Such as `A100`; empty: unknown."""
    memory_bytes: int = 0
    """Summed over the devices; 0: unknown."""
    memory_used_bytes: int = 0
    utilisation: float = math.nan
    """Share of the last sample period in which a kernel ran, 0 to 1, mean over the devices; NaN: unknown."""


class DeviceMonitor:
    """The newest state of the worker's devices; `watch` must run beside it.

    Where both kind and memory are given NVML is not asked: the worker emulates a device, or the operator knows better.
    Otherwise what is given wins over what NVML says.
    """

    def __init__(self, kind: str = "", memory_bytes: int = 0) -> None:
        self._given = DeviceState(kind=kind, memory_bytes=memory_bytes)
        self.state = self._given

    async def watch(self) -> None:
        """Keep `state` fresh until cancelled; returns where there is nothing to read."""
        if self._given.kind and self._given.memory_bytes:
            return
        nvml = _load_nvml()
        if nvml is None:
            return
        try:
            handles = _handles(nvml)
            while handles:
                # A driver may take milliseconds to answer: too long for the loop that reports.
                self.state = await asyncio.to_thread(self._read, nvml, handles)
                await asyncio.sleep(_PERIOD_S)
        except nvml.NVMLError as error:
            logger.warning("GPU utilisation and memory are not reported any more: %s", error)
            self.state = self._given
        finally:
            nvml.nvmlShutdown()

    def _read(self, nvml: Any, handles: list[Any]) -> DeviceState:
        memories = [nvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
        return DeviceState(
            kind=self._given.kind or device_kind(nvml.nvmlDeviceGetName(handles[0])),
            memory_bytes=self._given.memory_bytes or sum(memory.total for memory in memories),
            memory_used_bytes=sum(memory.used for memory in memories),
            utilisation=_utilisation(nvml, handles),
        )


def device_kind(name: str) -> str:
    """The kind as model tables spell it: `NVIDIA A100-SXM4-80GB` is an `A100`; names of another form stay."""
    match = _KIND.match(name)
    return match[1] if match else name.removeprefix("NVIDIA ")


def _load_nvml() -> Any:
    """The module `pynvml`, initialised; None where it or the driver is missing."""
    try:
        import pynvml  # noqa: PLC0415  an optional part: CPU workers need neither the package nor a driver
    except ImportError:
        logger.info("no GPU is reported: the package nvidia-ml-py is not installed")
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("no GPU is reported: NVML: %s", error)
        return None
    return pynvml


def _handles(nvml: Any) -> list[Any]:
    """Handles of the devices that CUDA_VISIBLE_DEVICES leaves visible (NVML itself ignores it); by index or UUID."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return handles
    wanted = {part.strip() for part in visible.split(",")}
    return [
        handle
        for index, handle in enumerate(handles)
        if str(index) in wanted or any(part and nvml.nvmlDeviceGetUUID(handle).startswith(part) for part in wanted)
    ]


def _utilisation(nvml: Any, handles: list[Any]) -> float:
    """Mean share, 0 to 1; NaN for devices that cannot tell (MIG slices, some virtual GPUs)."""
    try:
        return sum(float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles) / (100 * len(handles))
    except nvml.NVMLError_NotSupported:
        return math.nan
