from pathlib import Path

import pytest

from balancer.config.profile_file import ModelProfile, Profile, ProfilePoint, dump_profile, load_profile
from simulator import service
from simulator.service import fit, from_profile, measured, table, tables
from simulator.spec import ServiceTime

TFT_PYTORCH = "NVIDIA A30, PyTorch with FP16, Dataset: electricity"


def test_all_that_was_measured_is_there_once_and_well_formed() -> None:
    assert len(tables()) == len({(each.model, each.setup) for each in tables()}) == 110
    assert {each.device for each in tables()} == {"A100", "A30", "A40", "V100", "T4"}
    for each in tables():
        times = each.service
        assert list(times.rows) == sorted(set(times.rows))
        assert times.rows[0] >= 1
        assert len(times.device_s) == len(times.rows)
        assert len(times.host_s) in (0, len(times.rows))
        assert min(times.device_s) > 0


def test_device_and_host_seconds_are_the_rows_of_the_source() -> None:
    times = measured("BERT-large", "T4")
    assert times.rows == (1, 8, 16)
    assert times.device_s == pytest.approx((0.0137, 0.1138, 0.2180))
    assert times.host_s == pytest.approx((0.0001, 0.0001, 0.0001))


def test_what_pytorch_waits_for_in_the_output_is_on_the_device() -> None:
    each = table("TFT", TFT_PYTORCH)
    assert (each.parts_s["compute_infer"][-1], each.parts_s["compute_output"][-1]) == (0.0056, 0.0702)
    assert table("TFT", TFT_PYTORCH).service.device_s[-1] == pytest.approx(0.0758)
    assert table("TFT", TFT_PYTORCH).service.host_s[-1] == 0.0032


def test_without_a_breakdown_the_mean_latency_stands_for_the_device() -> None:
    times = measured("resnet50", "A40")
    assert times.device_s[:2] == (0.002031, 0.002459)
    assert times.host_s == ()


def test_overheads_add_up_to_what_the_client_saw() -> None:
    each = table("GPUNet-05ms-D", "NVIDIA DGX A100 (1x A100 80GB), ONNX Runtime with FP16")
    assert (each.max_batch_rows, each.instances) == (64, 2)
    parts_s = zip(*each.parts_s.values(), strict=True)
    assert [sum(parts) for parts in parts_s] == pytest.approx(list(each.mean_s), rel=0.02)


@pytest.mark.parametrize(
    ("model", "whole", "setup"),
    [
        ("ConvNets", "Classification-ConvNets", "NVIDIA T4, TF-TRT with FP16"),
        ("nnunet", "Segmentation-nnUNet", "NVIDIA T4 with FP16"),
        ("TFT", "Forecasting-TFT", "NVIDIA T4, NVIDIA TensorRT with FP16, Dataset: electricity"),
        ("dist6l", "LanguageModeling-BERT-dist6l", "NVIDIA T4, NVIDIA TensorRT with FP16"),
    ],
)
def test_a_short_name_finds_its_model_in_the_best_setup(model: str, whole: str, setup: str) -> None:
    assert measured(model, "T4") == table(whole, setup).service


@pytest.mark.parametrize(
    ("model", "device", "message"),
    [
        ("GPUNet", "A100", "'GPUNet', which fits several; name one of: Classification-GPUNet-05ms-D; "),
        ("gpt", "A100", "'gpt', which was not measured; name one of: Classification-ConvNets-resnet50; "),
        ("TFT", "H100", "device is 'H100', on which TFT was not measured; name one of: A30; V100; A100; T4"),
    ],
)
def test_what_was_not_measured_is_refused_with_what_was(model: str, device: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measured(model, device)


def test_an_unknown_setup_is_refused() -> None:
    with pytest.raises(ValueError, match="setup is 'CPU', in which TFT was not measured; name one of: NVIDIA A30"):
        table("TFT", "CPU")


def test_the_online_table_has_no_setup_that_the_offline_one_lacks() -> None:
    header, *lines = service.ONLINE.read_text().splitlines()
    assert header == service.OFFLINE.read_text().splitlines()[0]
    known = {each.model for each in tables()}
    assert {line.partition(",")[0] for line in lines} <= known


def test_a_fit_keeps_monotone_means_as_they_are() -> None:
    times = fit([8, 1, 1, 2], [0.05, 0.01, 0.02, 0.015])
    assert times.rows == (1, 2, 8)
    assert times.device_s == pytest.approx((0.015, 0.015, 0.05))


def test_a_fit_gives_neighbours_the_wrong_way_round_their_weighted_mean() -> None:
    times = fit([1, 2, 4], [0.012, 0.008, 0.03], [1, 3, 1])
    assert times.device_s == pytest.approx((0.009, 0.009, 0.03))


@pytest.mark.parametrize(
    ("batch", "seconds", "message"),
    [
        ([], [], "have 0, 0 and 0 values"),
        ([1, 2], [0.1], "have 2, 1 and 2 values"),
        ([0, 2], [0.1, 0.1], "batch is 0 for some sample"),
        ([1, 2], [0.1, -0.5], "seconds is -0.5 for some sample"),
    ],
)
def test_samples_that_mean_nothing_are_refused(batch: list[int], seconds: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(batch, seconds)


def test_a_profile_is_read_with_its_parts_apart(tmp_path: Path) -> None:
    points = (
        ProfilePoint(rows=1, mean_s=0.0105, input_s=0.0005, executions=10),
        ProfilePoint(rows=4, mean_s=0.0090, input_s=0.0010, std_s=0.001, executions=30),
        ProfilePoint(rows=8, mean_s=0.0200, input_s=0.0020, executions=10),
    )
    model = ModelProfile(model="m", version="1", max_batch_rows=8, instances=1, points=points)
    path = tmp_path / "a100.yaml"
    path.write_text(dump_profile(Profile(device="A100", measured_at="2026-01-01", server="triton", models=(model,))))
    times = from_profile(load_profile(path))["m"]
    assert times.rows == (1, 4, 8)
    assert times.device_s == pytest.approx((0.0085, 0.0085, 0.018)), "noise between 1 and 4, by executions"
    assert times.host_s == (0.0005, 0.0010, 0.0020)


@pytest.mark.parametrize(
    ("service", "device_s", "host_s"),
    [
        (ServiceTime((2, 4), (1.0, 3.0), (0.5, 0.25)), [1, 1, 1, 2, 3], [0.5, 0.5, 0.5, 0.375, 0.25]),
        (ServiceTime((1, 2, 3), (1.0, 5.0, 6.0)), [1, 1, 5, 6, 7], [0] * 5),
        (ServiceTime((4,), (0.25,)), [0.25] * 5, [0] * 5),
    ],
    ids=["lines between points", "the last line goes on", "a point is constant"],
)
def test_a_table_by_rows(service: ServiceTime, device_s: list[float], host_s: list[float]) -> None:
    assert [column.tolist() for column in service.table(4)] == [device_s, host_s]
