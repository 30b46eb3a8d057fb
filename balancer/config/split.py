"""`models.NAME.split`: two versions of a model that share its requests."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from balancer.core.settings import SplitSettings
from balancer.files.schema import Fraction, StrictModel, field_error
from balancer.gateway.versions import MAX_VERSION_DIGITS


def _is_version(value: str) -> str:
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_VERSION_DIGITS):
        raise ValueError(f"must be 1 to {MAX_VERSION_DIGITS} digits, as Triton's versions are")
    return value


Version = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    AfterValidator(_is_version),
]
"""A number to whoever writes it, and text to Triton."""


class SplitSection(StrictModel):
    """A share of the unary inferences that name no version gets a new one, the others the old: by routing key or
    sequence where there is one, else by chance. Where the new version fails or is slow more often, beyond chance, all
    go to the old one, until this section changes. Not split are streams, gRPC messages in compressed form, and gRPC
    requests of other gateways that do not hand over bodies: they get Triton's choice."""

    old: Version
    """The version of most."""
    new: Version
    """The version that is tried."""
    share: Fraction = 0.2
    """Of the requests that get the new one."""

    @model_validator(mode="after")
    def _two_versions(self) -> Self:
        if self.old == self.new:
            raise field_error(("new",), self.new, "is the old version; name another, or remove split")
        return self

    def check(self, model: str, served: tuple[str, ...]) -> None:
        """Refuse a split of a model into versions of which one may not be served; `served`: that may be, empty: all."""
        for field in ("old", "new"):
            version = getattr(self, field)
            if served and version not in served:
                rule = f"is not among models.{model}.versions; add it there, or name one of them"
                raise field_error(("models", model, "split", field), version, rule)

    def settings(self) -> SplitSettings:
        """As the core has them."""
        return SplitSettings(self.old, self.new, self.share)
