"""SUM is A + B, DIFFERENCE is A - B, MEAN the mean of each row of A and B together."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("A", "B"))
        mean = np.concatenate([a, b], axis=1).mean(axis=1, keepdims=True)
        outputs = {"SUM": a + b, "DIFFERENCE": a - b, "MEAN": mean}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
