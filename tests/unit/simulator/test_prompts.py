"""Prompts: what they share with one another, traces of them, and steps as measured."""

import json
import pathlib

import numpy as np
import pytest

from balancer.files.yaml_document import ConfigError
from simulator.language_models import measured_steps, roofline, step_samples
from simulator.scenario import Scenario, load_scenario
from simulator.service import fit
from simulator.workload.trace import TraceColumns, read_recorded

DATA = pathlib.Path(__file__).parents[3] / "simulator" / "data"
FILE = """
summary: a
split: train
fleet:
  models: {{m: {{device_ms: {{"*": {{1: 10, 100: 20}}}}, generation: {{{generation}}}}}}}
  workers: [{{count: 2}}]
workload: {{{workload}}}
"""
GENERATION = "devices: {'*': {memory_tokens: 10000}}, step_tokens: 100, max_sequences: 50"
WORKLOAD = "rate_per_s: 10, keys: {uniform: {count: 5}}, models: {m: {prompts: {tokens: {fixed: 40}}}}"


def scenario(folder: pathlib.Path, generation: str = GENERATION, workload: str = WORKLOAD) -> Scenario:
    path = folder / "s.yaml"
    path.write_text(FILE.format(generation=generation, workload=workload))
    return load_scenario(path)


def prompted(folder: pathlib.Path, prompts: str, keys: str = "uniform: {count: 5}", requests: int = 200) -> list[tuple]:
    """Of each request its key, tokens and blocks."""
    models = f"{{m: {{prompts: {{{prompts}}}, stream: {{responses: {{fixed: 10}}}}}}}}"
    arrivals = scenario(folder, workload=f"rate_per_s: 10, keys: {{{keys}}}, models: {models}").arrivals(1, requests)
    found = arrivals.prompts
    assert found is not None
    assert (found.block_tokens, set(found.output.tolist())) == (32, {10})
    blocks = np.split(found.block, np.cumsum(found.blocks)[:-1])
    return list(zip(arrivals.key.tolist(), found.tokens.tolist(), map(tuple, blocks), strict=True))


def test_prompts_share_what_all_and_what_those_of_their_key_begin_with(tmp_path: pathlib.Path) -> None:
    requests = prompted(tmp_path, "tokens: {uniform: {low: 1, high: 90}}, common_tokens: 80, key_tokens: 100")
    by_key = dict[int, tuple[int, ...]]()
    for key, tokens, blocks in requests:
        assert 181 <= tokens <= 270
        assert len(blocks) == 180 // 32
        assert by_key.setdefault(key, blocks) == blocks
    assert len(by_key) == 5
    # Two whole blocks are of the common text; the third is of text and key.
    assert len({blocks[:2] for blocks in by_key.values()}) == 1
    assert len({block for blocks in by_key.values() for block in blocks[2:]}) == 5 * 3


def test_a_conversation_repeats_what_was_said(tmp_path: pathlib.Path) -> None:
    requests = prompted(tmp_path, "tokens: {uniform: {low: 1, high: 90}}, conversation: true, at_most: 900")
    last = dict[int, tuple[int, tuple[int, ...]]]()
    for key, tokens, blocks in requests:
        before, begins = last.get(key, (-10, ()))
        assert len(blocks) == tokens // 32
        assert blocks[: len(begins)] == begins
        assert before + 11 <= tokens <= min(before + 100, 900) or tokens == 900
        last[key] = tokens, blocks
    assert max(tokens for tokens, _ in last.values()) == 900
    texts = [set(blocks) for _, blocks in last.values()]
    assert len(set.union(*texts)) == sum(map(len, texts))


def test_a_longer_run_begins_as_a_shorter_one(tmp_path: pathlib.Path) -> None:
    prompts = "tokens: {uniform: {low: 1, high: 90}}, common_tokens: 40, conversation: true"
    short, long = (prompted(tmp_path, prompts, requests=requests) for requests in (50, 200))
    assert [each[:2] for each in long[:50]] == [each[:2] for each in short]


def test_without_prompts_a_model_that_generates_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="requests to m have no prompts, and it generates: give them"):
        scenario(tmp_path, workload="load: 0.5")


@pytest.mark.parametrize(
    ("generation", "workload", "message"),
    [
        ("max_sequences: 3", WORKLOAD, "generation.devices: {} is not allowed: must be given with device_ms"),
        (GENERATION + ", kv_heads: 8", WORKLOAD, "generation.kv_heads: 8 is not allowed: goes with measured alone"),
        (
            GENERATION.replace("50", "101"),
            WORKLOAD,
            "max_sequences: 101 is not allowed: must be at most step_tokens, 1",
        ),
        (GENERATION.replace("10000", "0"), WORKLOAD, "memory_tokens: 0 is not allowed: must be at least 1"),
        (GENERATION.replace("'*'", "T4"), WORKLOAD, 'generation.devices: ["T4"] is not allowed: must name * or *'),
        (GENERATION + "}, instances: 2, noise: {kind: none", WORKLOAD, "m.instances: 2 is not allowed: is not of a"),
        (GENERATION + "}, batching: {max_batch_rows: 2", WORKLOAD, "max_batch_rows: 2 is not allowed: is not of a"),
        (GENERATION, WORKLOAD.replace("40", "0"), "prompts.tokens.fixed: 0 is not allowed"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: pathlib.Path, generation: str, workload: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario(tmp_path, generation, workload)
    assert message in str(caught.value)


def test_capacity_is_that_of_the_best_step(tmp_path: pathlib.Path) -> None:
    # Of 40 prompt tokens and 10 generated each, a step of 100 tokens completes two in 20 ms: on two workers.
    workload = WORKLOAD.replace("fixed: 40}", "fixed: 40}}, stream: {responses: {fixed: 10}")
    assert scenario(tmp_path, workload=workload).capacity_per_s == pytest.approx(200, rel=0.001)


def test_a_recorded_trace_has_blocks_and_distinct_times() -> None:
    recorded = read_recorded(DATA / "mooncake_synthetic.jsonl.gz")
    prompts = recorded.prompts
    assert prompts is not None
    assert len(prompts.tokens) == 3993
    assert np.array_equal(prompts.blocks, prompts.tokens // 512)
    assert prompts.output.min() >= 1
    assert np.all(np.diff(recorded.time_s) >= 0)
    # Blocks are numbered in the order in which they come, so each new one is the next.
    assert prompts.block[: prompts.blocks[0]].tolist() == list(range(prompts.blocks[0]))
    twice = recorded.prompts_at(np.arange(2 * 3993) % 3993)
    assert twice is not None
    assert len(twice.block) == 2 * len(prompts.block)
    assert not set(twice.block[: len(prompts.block)].tolist()) & set(twice.block[len(prompts.block) :].tolist())


def test_columns_of_a_table_may_be_prompts() -> None:
    columns = TraceColumns(prompt_column="ContextTokens", output_column="GeneratedTokens")
    prompts = read_recorded(DATA / "azure_llm_2023_conv.csv.gz", columns).prompts
    assert prompts is not None
    assert (len(prompts.tokens), prompts.tokens.min() > 0, prompts.blocks.sum()) == (19_366, True, 0)
    with pytest.raises(ValueError, match="give both or none"):
        TraceColumns(prompt_column="ContextTokens")


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"timestamp": 0}', '{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}'],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: pathlib.Path, line: str) -> None:
    good = json.dumps({"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [0]})
    (tmp_path / "t.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=r"t\.jsonl, line 2: is .*: give timestamp, input_length"):
        read_recorded(tmp_path / "t.jsonl")


@pytest.mark.parametrize("device", ["H100", "A100", "A40"])
def test_steps_that_were_left_out_are_predicted(device: str) -> None:
    tokens, seconds = step_samples()["Llama-2-7b-hf", device]
    times = fit(tokens[::2], seconds[::2])
    table, _ = times.table(max(tokens))
    error = np.abs(table[list(tokens[1::2])] / np.array(seconds[1::2]) - 1)
    assert np.median(error) < 0.1
    assert measured_steps("Llama-2-7b-hf", device).device_s[0] > 0


def test_memory_and_attention_follow_from_the_data_sheet() -> None:
    one, grouped = roofline("Llama-2-7b-hf", "A100"), roofline("Llama-2-7b-hf", "A100", kv_heads=8)
    # 2 * 32 layers * 32 heads * 128 numbers of two bytes a token; 72 GB less 13.5 GB of weights.
    assert one.memory_tokens == int((72e9 - 13.48e9) / 524_288)
    assert grouped.memory_tokens == pytest.approx(4 * one.memory_tokens, abs=4)
    assert one.context_s == 524_288 / 2.039e12
    assert grouped.attention_s == one.attention_s == 524_288 / 312e12
    with pytest.raises(ValueError, match="steps of 'Llama-2-7b-hf' on 'T4' were not measured; name one of: Llama"):
        measured_steps("Llama-2-7b-hf", "T4")
