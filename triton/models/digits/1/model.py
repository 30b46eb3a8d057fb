"""Digits: a multilayer perceptron in NumPy, with the weights that triton/train_digits.py wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """IMAGE (rows, 64) float32, 0..1, gives LABEL (rows, 1) and PROBABILITIES (rows, 10)."""

    def initialize(self, args: dict[str, Any]) -> None:
        with np.load(Path(__file__).with_name("weights.npz")) as weights:
            self._weights = dict(weights)

    def execute(self, requests: list[Any]) -> list[Any]:
        images = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
        # One multiplication for the whole batch that Triton put together, then a part of it for each request.
        probabilities = self._classify(np.concatenate(images))
        ends = np.cumsum([len(image) for image in images])[:-1]
        return [self._respond(part) for part in np.split(probabilities, ends)]

    def _classify(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        hidden = np.maximum(images @ self._weights["hidden_weights"] + self._weights["hidden_bias"], 0)
        logits = hidden @ self._weights["output_weights"] + self._weights["output_bias"]
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), dtype=np.float32)

    def _respond(self, probabilities: np.ndarray[Any, Any]) -> Any:
        labels = probabilities.argmax(axis=1).astype(np.int64)[:, np.newaxis]
        outputs = [pb_utils.Tensor("LABEL", labels), pb_utils.Tensor("PROBABILITIES", probabilities)]
        return pb_utils.InferenceResponse(output_tensors=outputs)
