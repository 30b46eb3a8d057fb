"""OUTPUT is INPUT; WORKER is the server's name."""

import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        worker = np.array([os.environ.get("BALANCER_WORKER", "")], dtype=np.object_)
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT", tensor), pb_utils.Tensor("WORKER", worker)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
