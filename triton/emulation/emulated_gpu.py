"""The model that all emulated_* folders serve: it occupies an emulated GPU for a measured time.

Environment of the tritonserver:

EMULATED_GPU               which GPU the worker has: A100 (default), A30, V100 or T4, as in latency.csv.
EMULATED_GPU_TIME_SCALE    multiplies every time; default 1.
EMULATED_GPU_CACHE_KEYS    how many keys the GPU remembers, whose requests are cheaper; default 0, see key_cache.py.
EMULATED_GPU_CACHE_SAVING  share of a request's time that a key it remembers saves; default 0.
EMULATED_GPU_LOCK          file whose lock is the GPU. Default: one for each tritonserver, in the temporary directory.
BALANCER_WORKER            what the output WORKER says; default the host's name.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from key_cache import KeyCache, key_in
from latency_table import read_latency


def _number(name: str, default: str) -> float:
    """A number of the environment; raises `ValueError` for what is none, or below 0."""
    text = os.environ.get(name, default)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name}={text} is out of range; give a number >= 0 (default: {default})")
    return number


class EmulatedModel:
    """Sleeps, with the worker's one GPU held, as long as a real GPU was measured to take for the batch.

    INPUT (rows, n) float32 gives CHECKSUM (rows, 1) float32, the sum of each row, and WORKER (rows, 1), who served it.
    """

    def initialize(self, args: dict[str, Any]) -> None:
        """Read the measured times of the model that config.pbtxt names, on the GPU that the environment names."""
        config = json.loads(args["model_config"])
        measured_model = config["parameters"]["measured_model"]["string_value"]
        self._latency = read_latency(measured_model, os.environ.get("EMULATED_GPU", "A100"))
        self._scale = _number("EMULATED_GPU_TIME_SCALE", "1")
        self._worker = os.environ.get("BALANCER_WORKER", socket.gethostname()).encode()
        # Every model has its own process, all of them children of one tritonserver: its id tells the worker.
        default_lock = os.path.join(tempfile.gettempdir(), f"emulated-gpu-{os.getuid()}-{os.getppid()}.lock")
        lock = os.environ.get("EMULATED_GPU_LOCK", default_lock)
        self._gpu = open(lock, "w")  # noqa: SIM115 (held until finalize)
        # Of this tritonserver alone: another one that starts here begins with an empty cache.
        keys = int(_number("EMULATED_GPU_CACHE_KEYS", "0"))
        self._cache = KeyCache(Path(f"{lock}.{os.getppid()}"), keys, _number("EMULATED_GPU_CACHE_SAVING", "0"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Serve one batch as Triton's dynamic batcher put it together."""
        # A GPU executes one thing at a time: models of the same worker wait for each other here.
        fcntl.flock(self._gpu, fcntl.LOCK_EX)
        try:
            started_s = time.monotonic()
            tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
            rows = sum(len(tensor) for tensor in tensors)
            done_s = started_s + self._scale * self._latency.time_s(rows) * self._work(requests, tensors) / rows
            responses = [self._respond(tensor) for tensor in tensors]
            time.sleep(max(0.0, done_s - time.monotonic()))
        finally:
            fcntl.flock(self._gpu, fcntl.LOCK_UN)
        return responses

    def finalize(self) -> None:
        """Let go of the GPU."""
        self._gpu.close()
        self._cache.close()

    def _work(self, requests: list[Any], tensors: list[np.ndarray[Any, Any]]) -> float:
        """Rows that the batch is worth: those whose keys are warm count less."""
        work = 0.0
        for request, tensor in zip(requests, tensors, strict=True):
            work += len(tensor) * self._cache.work(key_in(request.parameters()))
        return work

    def _respond(self, tensor: np.ndarray[Any, Any]) -> Any:
        checksum = tensor.sum(axis=1, dtype=np.float32, keepdims=True)
        worker = np.full((len(tensor), 1), self._worker, dtype=np.object_)
        outputs = [pb_utils.Tensor("CHECKSUM", checksum), pb_utils.Tensor("WORKER", worker)]
        return pb_utils.InferenceResponse(output_tensors=outputs)
