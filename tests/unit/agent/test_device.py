import math
from dataclasses import dataclass

import pytest

from balancer.agent import device
from balancer.agent.device import DeviceMonitor, DeviceState, device_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
    ],
)
def test_names_of_the_driver_become_kinds_of_the_model_table(name: str, kind: str) -> None:
    assert device_kind(name) == kind


@dataclass
class Memory:
    total: int
    used: int


@dataclass
class Rates:
    gpu: int


class FakeNvml:
    """Two GPUs; as much of the module `pynvml` as is used."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, supported: bool = True) -> None:
        self.supported = supported
        self.ended = False

    def nvmlShutdown(self) -> None:
        self.ended = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:
        return Memory(total=100 + handle, used=10 * (handle + 1))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Rates:
        if not self.supported:
            raise self.NVMLError_NotSupported
        return Rates(gpu=20 + 60 * handle)


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def read_once(nvml: FakeNvml, reader: DeviceMonitor) -> DeviceState:
    return reader._read(nvml, device._handles(nvml))


def test_devices_are_taken_together() -> None:
    assert read_once(FakeNvml(), DeviceMonitor()) == DeviceState("H200", 201, 30, 0.5)


@pytest.mark.parametrize(("visible", "memory"), [("1", 101), ("GPU-0", 100), ("0,1", 201)])
def test_only_visible_devices_count(visible: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert read_once(FakeNvml(), DeviceMonitor()).memory_bytes == memory


def test_no_visible_device_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device._handles(FakeNvml()) == []


def test_what_is_given_wins_over_nvml() -> None:
    assert read_once(FakeNvml(), DeviceMonitor(kind="big")) == DeviceState("big", 201, 30, 0.5)


def test_devices_without_utilisation_report_the_rest() -> None:
    state = read_once(FakeNvml(supported=False), DeviceMonitor())
    assert math.isnan(state.utilisation)
    assert state.memory_bytes == 201


async def test_an_emulated_device_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("NVML was asked")

    monkeypatch.setattr(device, "_load_nvml", refuse)
    emulated = DeviceMonitor("T4", 16 << 30)
    await emulated.watch()
    assert (emulated.state.kind, emulated.state.memory_bytes) == ("T4", 16 << 30)


async def test_a_driver_that_fails_leaves_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()

    def fail(handle: int) -> Memory:
        raise nvml.NVMLError("GPU is lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", fail)
    monkeypatch.setattr(device, "_load_nvml", lambda: nvml)
    worker_device = DeviceMonitor("H200")
    await worker_device.watch()
    assert worker_device.state.kind == "H200"
    assert worker_device.state.memory_bytes == 0
    assert nvml.ended


async def test_without_a_driver_there_is_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_load_nvml", lambda: None)
    unknown = DeviceMonitor()
    await unknown.watch()
    assert unknown.state.kind == ""
