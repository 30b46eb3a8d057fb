"""NVIDIA's load generator, unmodified, replays a part of Mooncake's trace through the listener."""

import asyncio
import gzip
import json
import os
from itertools import islice
from pathlib import Path

import pytest

from balancer.stack.stack import REPOSITORY, OwnStack
from dev.emulated_llm.process import new_emulated
from dev.peers import installed

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio]

AIPERF = "aiperf==0.13.0"
BLOCK, REQUESTS = 512, 60
TRACE = REPOSITORY / "simulator" / "data" / "mooncake_synthetic.jsonl.gz"
# It makes texts by a tokenizer, which it loads from a hub or from what was loaded before.
SNAPSHOT = "0" * 40
TOKENIZER = f"""
import pathlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

made = Tokenizer(models.BPE())
made.pre_tokenizer = pre_tokenizers.ByteLevel()
made.train([sys.argv[1]], trainers.BpeTrainer(vocab_size=1000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
model = pathlib.Path(sys.argv[2]) / "hub" / "models--local--tokenizer"
PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(model / "snapshots" / "{SNAPSHOT}")
LlamaConfig().save_pretrained(model / "snapshots" / "{SNAPSHOT}")
(model / "refs").mkdir()
(model / "refs" / "main").write_text("{SNAPSHOT}")
"""


def trace(path: Path) -> Path:
    """The first requests, four a second, cut to what the test has time for."""
    with gzip.open(TRACE, "rt") as file:
        rows = [json.loads(line) for line in islice(file, REQUESTS)]
    for number, row in enumerate(rows):
        row["timestamp"], row["output_length"] = 250 * number, min(row["output_length"], 100)
        row["input_length"] = min(row["input_length"], 8 * BLOCK)
        row["hash_ids"] = row["hash_ids"][: -(-row["input_length"] // BLOCK)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


async def test_a_trace_is_replayed_without_an_error(tmp_path: Path) -> None:
    python = await asyncio.to_thread(installed, Path("out/aiperf"), [AIPERF])
    home = tmp_path / "tokenizers"
    made = await asyncio.create_subprocess_exec(python, "-c", TOKENIZER, REPOSITORY / "README.md", home)
    assert await made.wait() == 0
    servers = new_emulated({"llm-0": "H100", "llm-1": "H100"}, "mooncake", tmp_path)
    native = {"envoy": {"frontend": "native", "shared_folder": str(tmp_path / "shared")}}
    async with OwnStack(tmp_path, language_models=servers, settings=native) as stack:
        process = await asyncio.create_subprocess_exec(
            *(python.with_name("aiperf"), "profile", "--model", "llama", "--url", f"http://{stack.url}"),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", "local/tokenizer", "--ui", "none"),
            *("--input-file", trace(tmp_path / "trace.jsonl"), "--custom-dataset-type", "mooncake_trace"),
            *("--fixed-schedule", "--output-artifact-dir", tmp_path / "found"),
            env={**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        )
        assert await process.wait() == 0
        found = json.loads((tmp_path / "found" / "profile_export_aiperf.json").read_text())
        assert found["request_count"]["avg"] == REQUESTS
        assert "error_request_count" not in found or not found["error_request_count"]["avg"]
        assert await stack.metric("balancer_tokens_total", kind="cached") > 0
