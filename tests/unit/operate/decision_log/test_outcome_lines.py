"""What a decision log says of how requests ended."""

from __future__ import annotations

import json

import pytest

from balancer.core.events import Finished, Void, Withdrawn
from balancer.operate.decision_log import lines


@pytest.mark.parametrize(("void", "told"), [("", True), ("request", True), ("deadline", True), ("client", False)])
def test_what_the_client_ended_is_no_outcome_of_a_worker(void: Void, told: bool) -> None:
    content = json.loads(lines.outcome(Finished(7, "w", 0.1, False, void), 1.0))["outcome"]
    assert ("worker" in content) is told
    assert told or lines.outcome(Finished(7, "w", 0.1, False, void), 1.0) == lines.outcome(Withdrawn(7), 1.0)
