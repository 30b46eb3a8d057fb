"""What `balancer learn` has a balancer do: a file in the folder that `learning.folder` names, followed like the config.

The learner writes it, whole, and balancers read it. It can only name policies in that folder, and how far one is tried;
whatever else is in force, the config says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from balancer.config.config import Config, from_mapping
from balancer.files.regular import UnreadableError, read_regular, replace_file
from balancer.files.schema import StrictModel, validate
from balancer.files.yaml_document import ConfigError, Document, Problem

NAME = "learning.json"
_MOST_BYTES = 2**20
_MOST_WORDS = 500
_REMEDY = "remove it, or set learning.enabled: false"

PolicyFile = Annotated[str, StringConstraints(pattern=r"^policy-[0-9]{1,9}\.npz$")]
Stage = Literal["recording", "training", "shadow", "rollout", "resting", "stopped"]
"""What goes on: requests are recorded to learn from; a policy is trained; it only looks on; traffic moves to it in
steps; nothing until the next time; nothing until `learning.enabled`."""


class Usual(StrictModel):
    """What a fleet was like while the requests came that were learned from."""

    models: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    most_per_s: float = 0.0
    """Requests a second, over some seconds."""


class Learned(StrictModel):
    """What the learner is at, and what it has put in force."""

    stage: Stage
    since_s: float = Field(ge=0)
    """Unix time."""
    words: Annotated[str, Field(max_length=_MOST_WORDS)] = ""
    """Why, for people."""
    kept: PolicyFile | None = None
    """In force in place of the config's policy."""
    kept_for: Usual | None = None
    """The fleet that it was trained for."""
    tried: PolicyFile | None = None
    """In the stages shadow and rollout."""

    def in_words(self) -> str:
        tried = f" of {self.tried}" if self.tried else ""
        in_force = f"{self.kept} is in force" if self.kept else "the config's policy is in force"
        return f"{self.stage}{tried}{f' ({self.words})' if self.words else ''}; {in_force}"

    @model_validator(mode="after")
    def _tries_something(self) -> Learned:
        if (self.tried is not None) != (self.stage in ("shadow", "rollout")):
            raise ValueError(
                f"tried must be given in the stages shadow and rollout alone, and the stage is {self.stage}"
            )
        return self


def learning_file(config: Config, source: Path) -> Path | None:
    """Where it is, of the config file `source`; None: nobody learns, or it is switched off."""
    section = config.learning
    return None if section.folder is None or not section.enabled else source.parent / section.folder / NAME


def read_learned(file: Path) -> Learned | None:
    """What the file says; None where there is none.

    Raises:
        ConfigError: it is none of the learner's; named, with the remedy.
    """
    try:
        if not file.exists():
            return None
        return validate(Learned, Document(str(file), json.loads(read_regular(file, _MOST_BYTES))))
    except (OSError, UnreadableError, ValueError, RecursionError) as error:
        raise ConfigError(
            [Problem(str(file), None, "", f"is not what balancer learn writes: {error}; {_REMEDY}")]
        ) from error


def write_learned(file: Path, learned: Learned) -> None:
    """Raises `OSError` where it cannot be written."""
    replace_file(file, (learned.model_dump_json(indent=1) + "\n").encode(), mode=0o644)


def fields_of(learned: Learned, config: Config, folder: Path) -> dict[str, Any]:
    """What it sets over the config, by field; the config's own shadow and rollout go before the learner's."""
    found: dict[str, Any] = {}
    if learned.kept is not None:
        found["policy"] = _policy(folder, learned.kept)
    if learned.tried is not None and learned.stage == "shadow" and config.shadow is None:
        found["shadow"] = {**_policy(folder, learned.tried), "share": config.learning.shadow_share}
    if learned.tried is not None and learned.stage == "rollout" and config.rollout is None:
        steps = {"shares": list(config.learning.shares), "step_s": config.learning.step_s}
        found["rollout"] = _policy(folder, learned.tried) | steps
    return found


def _policy(folder: Path, name: str) -> dict[str, Any]:
    return {"name": "learned", "options": {"file": str((folder / name).absolute())}}


def with_learned(config: Config, source: Path) -> tuple[Config, Learned | None, Mapping[str, Any]]:
    """The config of the file `source` with what the learner has put in force; what that is, and which fields.

    Raises:
        ConfigError: the learner's file is none, or does not fit; it is named, and the remedy.
    """
    file = learning_file(config, source)
    learned = None if file is None else read_learned(file)
    if file is None or learned is None:
        return config, None, {}
    fields = fields_of(learned, config, file.parent)
    if not fields:
        return config, learned, fields
    try:
        return from_mapping({**config.model_dump(mode="json"), **fields}, str(file)), learned, fields
    except ConfigError as error:
        problems = (Problem(each.source, None, each.field, f"{each.message}; {_REMEDY}") for each in error.problems)
        raise ConfigError(problems) from error
