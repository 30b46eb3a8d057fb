"""InferenceObjectives of a pool: their priorities by name, by a watch.

Everything here was written by whoever may create objectives, so each value has bounds.

Source: https://gateway-api-inference-extension.sigs.k8s.io/reference/x-spec/
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from balancer.bounds import MAX_TEXT_BYTES
from balancer.discovery.cluster.api import Cause, ClusterAccess, ObjectApi, Resource
from balancer.discovery.cluster.watch import FIELD, ObjectWatch, WatchCounts, newest_of
from balancer.discovery.inference.pool import GROUP
from balancer.files.schema import shown

logger = logging.getLogger(__name__)

OBJECTIVES = Resource(
    "inference.networking.x-k8s.io/v1alpha2",
    "inferenceobjectives",
    "only the objectives of the config (requests.objectives) count until it does",
)
MOST = 1000
"""Objectives of a namespace that are read; of more, the first by name."""
_LEAST_PRIORITY, _MOST_PRIORITY = -(2**63), 2**63 - 1
_FIELD = "inference_objective"

Priorities = Mapping[str, int]
"""As the cluster has them, by name: higher is more important, negative is sheddable."""


@dataclass(frozen=True, slots=True)
class Objective:
    name: str
    priority: int | None
    """None: it is another pool's, or cannot be used."""
    invalid: str = ""


def read_objective(found: Any, pool: str) -> Objective | None:
    """The objective of the API's JSON, as the pool of that name sees it; None: it is none."""
    try:
        name, spec = found["metadata"]["name"], found["spec"]
        reference, priority = spec["poolRef"], spec.get("priority")
        of = (reference.get("group", GROUP), reference.get("kind", "InferencePool"), reference["name"])
    except (AttributeError, KeyError, TypeError):
        return None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TEXT_BYTES:
        return None
    if of != (GROUP, "InferencePool", pool):
        return Objective(name, None)
    priority = 0 if priority is None else priority
    if type(priority) is not int or not _LEAST_PRIORITY <= priority <= _MOST_PRIORITY:
        rule = "is not allowed: must be a whole number of 64 bits; the objective counts as none"
        return Objective(name, None, f"priority: {shown(priority)} {rule}")
    return Objective(name, priority)


class ObjectiveWatch(ObjectWatch[Objective]):
    """Tells `publish` of the priorities, first as they are and then after every change."""

    what: ClassVar[str] = "InferenceObjectives"
    # The extension's objectives are an experiment of theirs: many clusters have pools alone.
    expected: ClassVar[frozenset[Cause]] = frozenset(("absent",))

    def __init__(
        self,
        access: ClusterAccess,
        pool: str,
        publish: Callable[[Priorities], None],
        counts: WatchCounts,
        connect: Callable[[ClusterAccess], ObjectApi] = ObjectApi,
    ) -> None:
        """`access`: that of the pool's namespace."""
        super().__init__(access, MOST, counts, connect)
        self._pool = pool
        self._publish = publish
        self._kept: dict[str, Objective] = {}
        self._beyond = False
        self._published: Priorities = {}

    def _read(self, found: Any) -> Objective | None:
        objective = read_objective(found, self._pool)
        if objective is None:
            self._invalid(_FIELD, "InferenceObjective ?", "it is not readable; it is left out")
        return objective

    def _replace(self, items: list[Objective], beyond: bool) -> None:
        before, self._kept = self._kept, {}
        self._leave_out(beyond)
        for item in items:
            self._keep(item, before.get(item.name))
        self._publish_changes()

    def _put(self, kind: str, item: Objective) -> None:
        before = self._kept.get(item.name)
        if kind == "DELETED":
            self._kept.pop(item.name, None)
        elif before is None and len(self._kept) >= self._most:
            self._leave_out(True)
        else:
            self._keep(item, before)
        self._publish_changes()

    def _has_room_again(self) -> bool:
        return self._beyond and len(self._kept) < self._most

    def _stays(self) -> str:
        return f"the {len(self._published)} InferenceObjectives known last stay"

    def _leave_out(self, beyond: bool) -> None:
        if beyond and not self._beyond:
            words = "%s: there are more than %d InferenceObjectives, and the others are left out; delete some"
            logger.warning(words, FIELD, self._most)
        self._beyond = beyond

    def _keep(self, item: Objective, before: Objective | None) -> None:
        self._kept[item.name] = item
        if item.invalid and item != before:
            self._invalid(_FIELD, f"InferenceObjective {item.name}", item.invalid)

    def _publish_changes(self) -> None:
        found = {each.name: each.priority for each in self._kept.values() if each.priority is not None}
        if found != self._published:
            self._published = found
            self._publish(found)


class ObjectiveSource:
    """The priorities of a pool's objectives. While the API is away, or has no such kind, it yields nothing."""

    def __init__(
        self, access: ClusterAccess, pool: str, connect: Callable[[ClusterAccess], ObjectApi] = ObjectApi
    ) -> None:
        """`access`: that of the pool's namespace; its resource and selectors do not matter."""
        self._access = ClusterAccess("", access.namespace, access.kubeconfig, OBJECTIVES)
        self._pool = pool
        self._connect = connect
        self.counts = WatchCounts()

    def updates(self, stop: asyncio.Event) -> AsyncGenerator[Priorities, None]:
        """The priorities after every change, until `stop` is set; nothing before the first objective."""
        return newest_of(self._watch, stop)

    def _watch(self, publish: Callable[[Priorities], None]) -> ObjectiveWatch:
        return ObjectiveWatch(self._access, self._pool, publish, self.counts, self._connect)
