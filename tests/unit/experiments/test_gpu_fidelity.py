"""The simulator against real GPUs: docs/fidelity/gpu.md claims these medians; here on every sixth concurrency."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from experiments.gpu_fidelity import plots, report
from experiments.gpu_fidelity.errors import Comparison, compare, groups, summary
from experiments.gpu_fidelity.predict import fleet, predict
from experiments.gpu_fidelity.setups import METRICS, Setup, setups


def one(family: str, device: str, runtime: str) -> Setup:
    return next(
        each for each in setups() if (each.family, each.table.device, each.runtime) == (family, device, runtime)
    )


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return [compare(each, every=6) for each in setups()]


def errors(comparisons: list[Comparison], heading: str) -> dict[str, float]:
    median, _ = summary(groups(comparisons)[heading])
    return dict(zip(METRICS, median, strict=True))


@pytest.mark.parametrize("heading", ["all setups", "all but ConvNets", "constants not chosen on: A100, T4"])
def test_the_median_error_is_what_was_aimed_for(comparisons: list[Comparison], heading: str) -> None:
    found = errors(comparisons, heading)
    assert found["throughput"] < 0.10
    assert found["mean"] < 0.10
    assert found["p50"] < 0.15
    assert found["p95"] < 0.20
    assert found["p99"] < 0.20


@pytest.mark.parametrize(
    ("heading", "throughput", "mean", "p99"),
    [
        ("GPUNet, ONNX Runtime", 0.08, 0.08, 0.15),
        ("WideAndDeep, TensorRT", 0.08, 0.08, 0.15),
        ("WideAndDeep, TensorFlow", 0.10, 0.10, 0.30),
        ("TFT, PyTorch", 0.10, 0.10, 0.28),
        ("TFT, TensorRT", 0.25, 0.22, 0.22),
    ],
)
def test_each_family_keeps_what_is_claimed(
    comparisons: list[Comparison], heading: str, throughput: float, mean: float, p99: float
) -> None:
    found = errors(comparisons, heading)
    assert found["throughput"] < throughput
    assert found["mean"] < mean
    assert found["p99"] < p99


def test_every_setup_of_the_table_is_shown(comparisons: list[Comparison]) -> None:
    assert len(setups()) == 34
    assert sum(len(each.observed) for each in setups()) == 1024
    text = report.markdown(comparisons)
    assert all(f"| {each.setup.name} |" in text for each in comparisons)
    assert len({each.setup.name for each in comparisons}) == 34


def test_a_prediction_repeats_itself() -> None:
    setup = one("WideAndDeep", "A30", "TensorRT")
    np.testing.assert_array_equal(predict(setup, (8, 32)), predict(setup, (8, 32)))


def test_nothing_measured_online_enters_a_prediction() -> None:
    setup = one("TFT", "T4", "PyTorch")
    blind = dataclasses.replace(setup, observed=())
    np.testing.assert_array_equal(predict(setup, (8,)), predict(blind, (8,)))


def test_tensorrt_pays_for_the_next_power_of_two_and_the_others_do_not() -> None:
    padded = fleet(one("WideAndDeep", "A30", "TensorRT"), 8).models[0].service["*"].device_s
    plain = fleet(one("WideAndDeep", "A30", "TensorFlow"), 8).models[0].service["*"].device_s
    # In requests of 2,048 rows: 33 of them are executed as 64, but for the copy of the inputs.
    assert padded[32] > 0.95 * padded[63] > 1.5 * padded[31]
    assert plain[32] < 1.1 * plain[31]


def test_triton_2112_holds_two_formed_batches_an_instance() -> None:
    assert fleet(one("GPUNet", "V100", "ONNX Runtime"), 8).models[0].instances == 6
    assert fleet(one("TFT", "T4", "PyTorch"), 8).models[0].instances == 2


def test_the_picture_and_the_numbers_are_written(comparisons: list[Comparison], tmp_path: Path) -> None:
    plots.scatter(comparisons[:2], tmp_path / "gpu.svg")
    assert "<svg" in (tmp_path / "gpu.svg").read_text()
    whole = [compare(one("TFT", "T4", "PyTorch"))]
    report.write_json(whole, tmp_path / "gpu.json")
    assert '"concurrency": 256' in (tmp_path / "gpu.json").read_text()
