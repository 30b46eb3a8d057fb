"""The model that all emulated_* folders serve: it occupies an emulated GPU for a measured time.

Environment of the tritonserver:

EMULATED_GPU             which GPU the worker has: A100 (default), A30, V100 or T4, as in latency.csv.
EMULATED_GPU_TIME_SCALE  multiplies every time; default 1.
EMULATED_GPU_LOCK        file whose lock is the GPU. Default: one for each tritonserver, in the temporary directory.
BALANCER_WORKER          what the output WORKER says; default the host's name.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from latency_table import read_latency


def _time_scale() -> float:
    text = os.environ.get("EMULATED_GPU_TIME_SCALE", "1")
    try:
        scale = float(text)
    except ValueError:
        scale = float("nan")
    if not 0 <= scale < float("inf"):
        raise ValueError(f"EMULATED_GPU_TIME_SCALE={text} is no factor; give a number >= 0 (1: as measured)")
    return scale


class EmulatedModel:
    """Sleeps, with the worker's one GPU held, as long as a real GPU was measured to take for the batch.

    INPUT (rows, n) float32 gives CHECKSUM (rows, 1) float32, the sum of each row, and WORKER (rows, 1), who served it.
    """

    def initialize(self, args: dict[str, Any]) -> None:
        """Read the measured times of the model that config.pbtxt names, on the GPU that the environment names."""
        config = json.loads(args["model_config"])
        measured_model = config["parameters"]["measured_model"]["string_value"]
        self._latency = read_latency(measured_model, os.environ.get("EMULATED_GPU", "A100"))
        self._scale = _time_scale()
        self._worker = os.environ.get("BALANCER_WORKER", socket.gethostname()).encode()
        # Every model has its own process, all of them children of one tritonserver: its id tells the worker.
        default_lock = os.path.join(tempfile.gettempdir(), f"emulated-gpu-{os.getuid()}-{os.getppid()}.lock")
        self._gpu = open(os.environ.get("EMULATED_GPU_LOCK", default_lock), "w")  # noqa: SIM115 (held until finalize)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Serve one batch as Triton's dynamic batcher put it together."""
        # A GPU executes one thing at a time: models of the same worker wait for each other here.
        fcntl.flock(self._gpu, fcntl.LOCK_EX)
        try:
            started_s = time.monotonic()
            tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
            done_s = started_s + self._scale * self._latency.time_s(sum(len(tensor) for tensor in tensors))
            responses = [self._respond(tensor) for tensor in tensors]
            time.sleep(max(0.0, done_s - time.monotonic()))
        finally:
            fcntl.flock(self._gpu, fcntl.LOCK_UN)
        return responses

    def finalize(self) -> None:
        """Let go of the GPU."""
        self._gpu.close()

    def _respond(self, tensor: np.ndarray[Any, Any]) -> Any:
        checksum = tensor.sum(axis=1, dtype=np.float32, keepdims=True)
        worker = np.full((len(tensor), 1), self._worker, dtype=np.object_)
        outputs = [pb_utils.Tensor("CHECKSUM", checksum), pb_utils.Tensor("WORKER", worker)]
        return pb_utils.InferenceResponse(output_tensors=outputs)
