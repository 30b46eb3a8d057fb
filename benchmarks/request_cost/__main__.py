"""Prints nanoseconds a request, and how many bytes of its body were held until it was understood."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2

from balancer.gateway.kserve import SERVICE
from benchmarks.fuzz.request import OPTIMISED, compiled

_CHUNK_BYTES = 16_384
_GRPC = (SERVICE + "ModelInfer", "application/grpc")
_REST = ("/v2/models/emulated_tft/infer", "application/octet-stream")


def main() -> None:
    """Run it."""
    cases = [
        ("gRPC, 64 bytes", _GRPC, _message(64), 1_000_000),
        ("gRPC, 64 bytes, of a sequence", _GRPC, _message(64, sequence_id=42), 1_000_000),
        ("gRPC, 1 MiB", _GRPC, _message(2**20), 300_000),
        ("REST, 64 bytes of JSON", _REST, _json([1.0] * 8), 500_000),
        ("REST, 1 MB of JSON", _REST, _json([0.123456789] * 80_000), 300),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compiled(folder / "cost", [Path(__file__).parent / "cost.c"], OPTIMISED)
        for title, call, body, repeats in cases:
            (folder / "body").write_bytes(body)
            command: list[str | Path] = [program, str(repeats), str(_CHUNK_BYTES), *call, folder / "body"]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
            print(f"{title:<32}{int(said[0]):>10,} ns, {int(said[1]):>10,} of {len(body):>10,} bytes held")


def _message(size_bytes: int, **parameters: int) -> bytes:
    message: Any = service_pb2.ModelInferRequest(model_name="emulated_tft", id="17")
    for key, value in parameters.items():
        message.parameters[key].int64_param = value
    message.inputs.add(name="INPUT", datatype="FP32", shape=[1, size_bytes // 4])
    message.outputs.add(name="OUTPUT")
    message.raw_input_contents.append(bytes(size_bytes))
    data: bytes = message.SerializeToString()
    return b"\0" + struct.pack(">I", len(data)) + data


def _json(data: list[float]) -> bytes:
    each = {"name": "INPUT", "shape": [1, len(data)], "datatype": "FP32", "data": data}
    return json.dumps({"id": "17", "inputs": [each], "parameters": {"binary_data_output": True}}).encode()


if __name__ == "__main__":
    main()
