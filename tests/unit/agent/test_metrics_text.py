from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from balancer.agent.metrics_page import MetricsError, MetricsParser, ModelMetrics, memory_tokens
from balancer.bounds import MAX_COUNT

RECORDED = Path(__file__).with_name("metrics_triton_2_51.txt")
"""A page of a real Triton 2.51 with 60 requests just sent to `slow`: 8 finished, 8 executing, 44 pending."""

COMPUTE = [f"nv_inference_compute_{part}_duration_us" for part in ("input", "infer", "output")]


def test_recorded_page_reads_as_the_reference_parser_reads_it() -> None:
    page = RECORDED.read_bytes()
    totals: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if "model" in sample.labels:
                # The reference parser renames counters.
                key = (sample.labels["model"], sample.labels["version"], sample.name.removesuffix("_total"))
                totals[key] = totals.get(key, 0.0) + sample.value

    parsed = MetricsParser().parse(page)

    assert parsed.keys() == {("fast", "1"), ("plain", "1"), ("slow", "1")}
    for (model, version), metrics in parsed.items():
        expected = ModelMetrics(
            pending=totals[model, version, "nv_inference_pending_request_count"],
            succeeded=totals[model, version, "nv_inference_request_success"],
            failed=totals[model, version, "nv_inference_request_failure"],
            compute_us=sum(totals[model, version, name] for name in COMPUTE),
        )
        assert metrics == expected
    assert parsed["slow", "1"].pending == 44
    assert parsed["slow", "1"].succeeded == 8


def test_second_page_is_read_anew_and_not_added_to_the_first() -> None:
    parser = MetricsParser()
    page = RECORDED.read_bytes()
    assert parser.parse(page) == parser.parse(page)


def test_gpus_and_failure_reasons_are_summed() -> None:
    page = b"""\
nv_inference_request_success{gpu_uuid="GPU-1",model="m",version="2"} 3
nv_inference_request_success{gpu_uuid="GPU-2",model="m",version="2"} 4
nv_inference_request_failure{model="m",reason="BACKEND",version="2"} 1
nv_inference_request_failure{model="m",reason="REJECTED",version="2"} 1.5e+01
"""
    assert MetricsParser().parse(page) == {("m", "2"): ModelMetrics(succeeded=7, failed=16)}


def blocks(model: str, of_all: str, used: int) -> bytes:
    labels = f'model="{model}",version="1"'
    counts = {"max": of_all, "used": used, "tokens_per": 64, "free": 5, "fraction": 0.5}
    lines = [
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",{labels}}} {counts[kind]}' for kind in counts
    ]
    return "\n".join([*lines, ""]).encode()


def test_the_memory_of_tensorrt_llm_s_engine_is_read() -> None:
    """Names and labels as its backend documents them."""
    page = blocks("tensorrt_llm", "6239", 10) + b'nv_inference_request_success{model="ensemble",version="1"} 3\n'
    assert memory_tokens(MetricsParser().parse(page)) == (64 * 6239, 640)
    assert memory_tokens(MetricsParser().parse(page + blocks("another", "100", 1))) == (0, 0)
    assert memory_tokens(MetricsParser().parse(blocks("m", "1e300", 10**9))) == (MAX_COUNT, 64 * 10**9)
    assert memory_tokens({}) == (0, 0)


def test_escaped_names_are_read() -> None:
    page = rb'nv_inference_pending_request_count{model="a \"b\" \\ c} d",version="1"} 2' + b"\n"
    assert MetricsParser().parse(page) == {('a "b" \\ c} d', "1"): ModelMetrics(pending=2)}


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (b'nv_inference_request_success{model="m",version="1"} many\n', "b'many' is not a number"),
        (b'nv_inference_request_success{model="m",version="1"} NaN\n', "b'NaN' is not a number"),
        (b'nv_inference_request_success{model="m"} 1\n', "has no label 'version'"),
    ],
)
def test_what_cannot_be_read_is_refused(page: bytes, message: str) -> None:
    with pytest.raises(MetricsError, match=message):
        MetricsParser().parse(page)
