"""Policies of the folders beside this file, as if somebody had installed them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.config.policy_options import installed_policies


@contextlib.contextmanager
def installed(folder: str) -> Iterator[None]:
    """The policies of one folder, for this process and for those that it starts."""
    path = Path(__file__).with_name(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
        patch.syspath_prepend(path)
        installed_policies.cache_clear()
        yield
    installed_policies.cache_clear()
