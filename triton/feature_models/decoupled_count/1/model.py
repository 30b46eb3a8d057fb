"""Decoupled: one request, COUNT responses, numbered from 0."""

import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> None:
        worker = np.array([os.environ.get("BALANCER_WORKER", "")], dtype=np.object_)
        for request in requests:
            sender = request.get_response_sender()
            for index in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                number = pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32))
                sender.send(pb_utils.InferenceResponse([number, pb_utils.Tensor("WORKER", worker)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
