"""UPPER is TEXT (UTF-8) in capitals."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            upper = [text.decode().upper().encode() for text in texts.ravel()]
            tensor = pb_utils.Tensor("UPPER", np.array(upper, dtype=np.object_).reshape(texts.shape))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
