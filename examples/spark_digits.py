"""Spark asks a fleet: each of its tasks has a client of Triton's, and each batch of rows is one request.

    balancer up
    pip install pyspark pandas pyarrow scikit-learn 'tritonclient[grpc]'        # Spark needs Java
    python examples/spark_digits.py

Requests are spread by the balancer and not by Spark: partitions may be as uneven as they are.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import avg, col, count
from sklearn.datasets import load_digits
from tritonclient import grpc as triton

ROWS = 32  # of a batch at most, as the model has them


def labelled(listener: str, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Within a task: its rows, with what the model takes them for."""
    client = triton.InferenceServerClient(listener)
    for frame in frames:
        images = np.stack(frame["image"].to_numpy()).astype(np.float32)
        asked = triton.InferInput("IMAGE", images.shape, "FP32")
        asked.set_data_from_numpy(images)
        answer = client.infer("digits", [asked], client_timeout=30)
        yield frame[["digit"]].assign(label=answer.as_numpy("LABEL")[:, 0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listener", default="127.0.0.1:8080", help="Envoy's")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of tasks on this machine
    spark = SparkSession.builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS).getOrCreate()
    digits = load_digits()
    rows = [(int(digit), (image / 16).tolist()) for image, digit in zip(digits.data, digits.target, strict=True)]
    frame = spark.createDataFrame(rows, "digit long, image array<float>")
    found = frame.mapInPandas(partial(labelled, given.listener), "digit long, label long")
    right = (col("digit") == col("label")).cast("double")
    (told,) = found.agg(count("*").alias("rows"), avg(right).alias("right")).collect()
    print(f"{told['rows']} digits, {told['right']:.1%} of them right")
