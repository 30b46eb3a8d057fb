"""Answers `text_input`: token by token where `stream` says so, else whole. Parameters: `max_tokens`, `temperature`."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
import xllamacpp

SLOTS, SLOT_TOKENS = 4, 2048
OPTIONS = {"max_tokens": 16, "temperature": 0.0}
"""Unless the request's parameters say otherwise."""


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = os.environ["LANGUAGE_MODEL_GGUF"]
        params.n_parallel, params.n_ctx = SLOTS, SLOTS * SLOT_TOKENS
        params.cpuparams.n_threads = 1
        self._server = xllamacpp.Server(params)
        self._running = ThreadPoolExecutor(SLOTS)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            stream = pb_utils.get_input_tensor_by_name(request, "stream")
            given = json.loads(request.parameters() or "{}")
            options = {name: given.get(name, usual) for name, usual in OPTIONS.items()}
            asked = {"prompt": text, "stream": True} | options
            whole = stream is None or not stream.as_numpy()[0]
            self._running.submit(self._answer, request.get_response_sender(), asked, whole)

    def finalize(self) -> None:
        self._running.shutdown()

    def _answer(self, sender: Any, asked: dict[str, Any], whole: bool) -> None:
        pieces: list[str] = []
        errors: list[str] = []

        def take(event: dict[str, Any]) -> bool:
            """True: nobody wants more. Must not raise: the library would drop it."""
            if "error" in event:
                errors.append(event["error"]["message"])
                return True
            text = event["choices"][0]["text"]
            pieces.append(text)
            if text and not whole:
                sender.send(_response(text))
            return bool(sender.is_cancelled())

        try:
            self._server.handle_completions(asked, take)
        except Exception as error:  # the client is to see it
            errors.append(str(error))
        if errors:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(errors[0])))
        elif whole:
            sender.send(_response("".join(pieces)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _response(text: str) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text], dtype=np.object_))])
