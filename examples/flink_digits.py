"""Flink asks a fleet: each subtask keeps a connection, and each element is one request, which the server batches.

    balancer up
    pip install apache-flink scikit-learn        # Flink needs Java
    python examples/flink_digits.py

By KServe's JSON: Triton's clients want another gRPC than Flink, and a thread of their own.
"""

import argparse
import sys

import requests
from pyflink.common import Types
from pyflink.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from sklearn.datasets import load_digits


class Labelled(MapFunction):
    """A digit and its image become the digit and what the model takes the image for."""

    def __init__(self, listener: str) -> None:
        self._url = f"http://{listener}/v2/models/digits/infer"

    def open(self, _: RuntimeContext) -> None:
        self._session = requests.Session()

    def map(self, row: tuple[int, list[float]]) -> tuple[int, int]:
        digit, image = row
        tensor = {"name": "IMAGE", "shape": [1, len(image)], "datatype": "FP32", "data": list(image)}
        answer = self._session.post(self._url, json={"inputs": [tensor]}, timeout=30)
        answer.raise_for_status()
        (label,) = (each["data"][0] for each in answer.json()["outputs"] if each["name"] == "LABEL")
        return digit, label


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listener", default="127.0.0.1:8080", help="Envoy's")
    given = parser.parse_args()
    digits = load_digits()
    rows = [(int(digit), (image / 16).tolist()) for image, digit in zip(digits.data, digits.target, strict=True)]
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_python_executable(sys.executable)
    element = Types.TUPLE([Types.LONG(), Types.LIST(Types.DOUBLE())])
    found = environment.from_collection(rows, element).map(Labelled(given.listener), Types.TUPLE([Types.LONG()] * 2))
    with found.execute_and_collect("digits") as told:
        right = [digit == label for digit, label in told]
    print(f"{len(right)} digits, {sum(right) / len(right):.1%} of them right")
