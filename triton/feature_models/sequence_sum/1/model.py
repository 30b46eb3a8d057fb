"""SUM of the VALUEs of a sequence since its START; forgotten at its END."""

import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        self._sums: dict[Any, Any] = {}
        self._worker = np.array([[os.environ.get("BALANCER_WORKER", "")]], dtype=np.object_)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._add(request) for request in requests]

    def _add(self, request: Any) -> Any:
        names = ("VALUE", "START", "END")
        value, start, end = (pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel() for name in names)
        sequence = request.correlation_id()
        # Arrays, which wrap as INT64 does: load testers send any numbers.
        total = value if start[0] else self._sums[sequence] + value
        if end[0]:
            self._sums.pop(sequence, None)
        else:
            self._sums[sequence] = total
        outputs = [pb_utils.Tensor("SUM", total.reshape(1, 1)), pb_utils.Tensor("WORKER", self._worker)]
        return pb_utils.InferenceResponse(outputs)
