"""Fails at an INPUT below 0, and at every one while the folder MOODY_FOLDER has a file of its server's name."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        name = os.environ["BALANCER_WORKER"]
        breaks = (Path(os.environ["MOODY_FOLDER"]) / name).exists()
        worker = pb_utils.Tensor("WORKER", np.array([name], dtype=np.object_))
        responses = []
        for request in requests:
            bad = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0] < 0
            error = pb_utils.TritonError("out of memory") if breaks or bad else None
            responses.append(pb_utils.InferenceResponse([] if error else [worker], error))
        return responses
