"""The profile file: how long a model takes on a device, by batch size, as `balancer profile` measured it.

Written there; read by the balancer as the prior of its service times (`estimators.profiles`) and by the simulator.
"""

from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from balancer.files.schema import Count, NotNegative, Positive, StrictModel, field_error, validate
from balancer.files.yaml_document import dump, read_document, read_file


class ProfilePoint(StrictModel):
    """One batch size."""

    rows: Count
    """Batch size."""
    mean_s: Positive
    """Mean seconds of an execution: input, inference and output, as Triton's statistics have them."""
    input_s: NotNegative = 0.0
    """The part of the mean in which inputs are gathered and copied, before the device is needed."""
    std_s: NotNegative | None = None
    """Standard deviation over the executions; null: not known."""
    executions: Count
    """Executions measured."""

    @model_validator(mode="after")
    def _input_is_a_part(self) -> Self:
        if self.input_s >= self.mean_s:
            raise field_error(
                ("input_s",), self.input_s, f"must be less than mean_s, {self.mean_s}, of which it is a part"
            )
        return self


class ModelProfile(StrictModel):
    """One model."""

    model: Annotated[str, Field(min_length=1)]
    """Name as Triton has it."""
    version: str
    """Version that was measured."""
    max_batch_rows: Count
    """Largest batch that the model takes."""
    instances: Count
    """Executions that the server allows at once."""
    points: tuple[ProfilePoint, ...]
    """By batch size, ascending."""

    @field_validator("points")
    @classmethod
    def _ascending(cls, points: tuple[ProfilePoint, ...]) -> tuple[ProfilePoint, ...]:
        rows = [point.rows for point in points]
        if not rows or rows != sorted(set(rows)):
            raise ValueError("one point is needed, and rows must ascend and be there once each; sort the points")
        return points

    def affine(self) -> tuple[float, float]:
        """`fixed_s` and `per_row_s` of the line through the points with the least squares of relative errors.

        Neither is negative. With one point all of its time is fixed: nothing tells what the rows add.
        """
        rows = np.array([point.rows for point in self.points], float)
        inverse = 1 / np.array([point.mean_s for point in self.points])
        fixed_s, per_row_s = float(inverse.sum() / (inverse @ inverse)), 0.0
        if len(rows) > 1:
            sides = np.stack([inverse, rows * inverse], axis=1)
            fixed_s_free, per_row_s_free = np.linalg.lstsq(sides, np.ones(len(rows)))[0]
            if fixed_s_free < 0:
                fixed_s, per_row_s = 0.0, float(sides[:, 1].sum() / (sides[:, 1] @ sides[:, 1]))
            elif per_row_s_free >= 0:
                fixed_s, per_row_s = float(fixed_s_free), float(per_row_s_free)
        return fixed_s, per_row_s


class Profile(StrictModel):
    """One file: one server's models."""

    device: Annotated[str, Field(min_length=1)]
    """Device kind, spelt as that of the workers which it stands for."""
    measured_at: str
    """Date and time, ISO 8601."""
    server: str
    """Name and version of the server."""
    concurrency: Count = 1
    """Requests that were under way at once."""
    models: tuple[ModelProfile, ...]
    """What was measured."""

    @field_validator("models")
    @classmethod
    def _once_each(cls, models: tuple[ModelProfile, ...]) -> tuple[ModelProfile, ...]:
        names = [model.model for model in models]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} is there twice; keep one of them, or write two files")
        return models


def load_profile(path: Path) -> Profile:
    """The profile in the file at `path`.

    Raises:
        ConfigError: it cannot be read, or does not fit; names file, line, field, value and remedy.
    """
    return validate(Profile, read_document(read_file(path), str(path)))


def dump_profile(profile: Profile) -> str:
    return dump(profile.model_dump(mode="json"))
