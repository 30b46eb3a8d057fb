"""The table of measured GPU times and its interpolation."""

import csv
import re
from pathlib import Path

import pytest
from support.by_path import load

ROOT = Path(__file__).parents[2]
GPUS = ("A100", "A30", "V100", "T4")


latency_table = load("triton/emulation/latency_table.py")


def test_measured_points_are_returned_as_measured() -> None:
    # BERT large on a T4: 0.1 + 13.7 + 0.0, 0.1 + 113.8 + 0.0 and 0.1 + 218.0 + 0.0 ms at 1, 8 and 16 rows.
    latency = latency_table.read_latency("LanguageModeling-BERT-large", "T4")
    assert [latency.time_s(batch) for batch in (1, 8, 16)] == pytest.approx([0.0138, 0.1139, 0.2181])


def test_between_points_it_is_linear_and_past_the_last_it_goes_on() -> None:
    latency = latency_table.BatchLatency((1, 8, 16), (1.0, 8.0, 24.0))
    assert latency.time_s(4) == pytest.approx(4.0)
    assert latency.time_s(12) == pytest.approx(16.0)
    assert latency.time_s(18) == pytest.approx(28.0)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_has_rows(batch: int) -> None:
    with pytest.raises(ValueError, match=f"batch={batch}.*1 or more rows"):
        latency_table.BatchLatency((1, 2), (1.0, 2.0)).time_s(batch)


def test_an_unknown_gpu_or_model_is_refused_with_those_measured() -> None:
    with pytest.raises(ValueError, match=r"BERT-large on EMULATED_GPU=H100; choose one of: A30, V100, A100, T4"):
        latency_table.read_latency("LanguageModeling-BERT-large", "H100")
    with pytest.raises(ValueError, match=r"measured_model=GPT; choose one of: Forecasting-TFT, LanguageModeling-"):
        latency_table.read_latency("GPT", "T4")


def configs() -> list[Path]:
    return sorted((ROOT / "triton").glob("*models/emulated_*/config.pbtxt"))


@pytest.mark.parametrize("config", configs(), ids=lambda path: path.parent.name)
def test_every_emulated_model_was_measured_on_every_gpu(config: Path) -> None:
    text = config.read_text()
    model = re.search(r'key: "measured_model" value { string_value: "([^"]+)"', text)
    max_batch = re.search(r"max_batch_size: (\d+)", text)
    assert model is not None
    assert max_batch is not None
    for gpu in GPUS:
        latency = latency_table.read_latency(model[1], gpu)
        times = [latency.time_s(batch) for batch in range(1, int(max_batch[1]) + 1)]
        assert times == sorted(times)
        assert int(max_batch[1]) <= latency.batches[-1]


def test_the_copy_is_what_was_handed_to_the_project() -> None:
    """Every row of ours stands in the table it was copied from, where that table is at hand."""
    shared = ROOT.parent / "shared" / "data" / "triton_latency_offline.csv"
    if not shared.is_file():
        pytest.skip("the table that latency.csv was copied from is not beside this checkout")
    renamed = {"client_mean_ms": "avg_ms"}
    columns = ("model", "batch", "compute_input_ms", "compute_infer_ms", "compute_output_ms", "client_mean_ms", "setup")
    with shared.open(newline="") as file:
        source = {tuple(row[renamed.get(column, column)] for column in columns) for row in csv.DictReader(file)}
    with latency_table.TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            assert tuple(row[column] for column in columns) in source
            assert row["gpu"] in row["setup"]
