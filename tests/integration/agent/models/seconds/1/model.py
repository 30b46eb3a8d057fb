"""Takes as long as its input says, in seconds; a batch as long as its longest. Returns its input."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy() for request in requests]
        time.sleep(float(max(np.max(array) for array in inputs)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in inputs]
