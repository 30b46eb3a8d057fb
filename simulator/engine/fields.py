"""The arrays of the engine's records, declared: axes, type, value at the start of a run."""

from __future__ import annotations

import numpy as np

from balancer.core.estimators.columns import Fields
from simulator.engine import layout as at
from simulator.result import Status

TOGETHER = ("e k", "g log")
"""Axes of what is looked up one entry at a time, and lies together for it."""
# Of each array: its axes (`allocate._lengths` says how long), type, and value at the start of a run. The first axis
# tells which part belongs to one environment.
PLAN: Fields = {
    "env": ("e env", float, 0),
    "model": ("em model", float, 0),
    "preferred": ("em preferred", int, 0),
    "worker": ("g worker", float, 1),
    "table": ("g m", int, -1),
    "permitted": ("g m two", bool, True),
    "instances": ("g m", int, 0),
    "device_s": ("tables rows", float, 0),
    "host_s": ("tables rows", float, 0),
    "fault_kind": ("e faults", int, 0),
    "fault_worker": ("e faults", int, 0),
    "fault_at_s": ("e faults", float, 0),
    "fault_until_s": ("e faults", float, 0),
    "fault_amount": ("e faults", float, 0),
    "seed": ("e", np.uint64, 0),
    "router_seed": ("e b", np.uint64, 0),
}
DEMAND: Fields = {
    "time_s": ("e k", float, 0),
    "model": ("e k", np.int16, 0),
    "rows": ("e k", np.int32, 1),
    "work": ("e k", float, 1),
    "key": ("e k", np.uint64, 0),
    "deadline_s": ("e k", float, np.inf),
    "priority": ("e k", np.int16, 0),
    "balancer": ("e k", np.int16, 0),
}
STATE: Fields = {
    "clock": ("e clock", float, 0),
    "counts": ("e count", int, 0),
    "real": ("g real", float, 0),
    "whole": ("g whole", int, 0),
    "slot_state": ("g slots", np.int8, at.FREE),
    "slot_model": ("g slots", int, 0),
    "slot_rows": ("g slots", int, 0),
    "slot_head": ("g slots", int, 0),
    "slot_order": ("g slots", int, 0),
    "slot_start_s": ("g slots", float, 0),
    "slot_ready_s": ("g slots", float, 0),
    "slot_left_s": ("g slots", float, 0),
    "queue_head": ("g m levels", int, 0),
    "queue_tail": ("g m levels", int, 0),
    "queue_count": ("g m levels", int, 0),
    "queued": ("g m", int, 0),
    "executing": ("g m", int, 0),
    "busy_instances": ("g m", int, 0),
    "coming_rows": ("g m", float, 0),
    "coming_work": ("g m", float, 0),
    "timer_s": ("g m", float, np.inf),
    "cache": ("g entries", np.uint64, 0),
    "compute_s": ("g m", float, 0),
    "sample_s": ("g samples", float, 0),
    "sample_compute_s": ("g samples m", float, 0),
    "log_model": ("g log", np.int16, 0),
    "log_rows": ("g log", np.int32, 0),
    "log_requests": ("g log", np.int32, 0),
    "log_s": ("g log", float, 0),
    "snapshot": ("g snapshots four", int, 0),
    "snapshot_pending": ("g snapshots m", float, 0),
    "snapshot_executing": ("g snapshots m", float, 0),
    "next": ("e k", np.int32, -1),
    "heard": ("e k", np.int32, -1),
    "arrived_s": ("e k", float, 0),
    "sent_s": ("e k", float, 0),
    "queued_s": ("e k", float, 0),
    "resolved_s": ("e k", float, np.nan),
    "status": ("e k", np.int8, Status.UNFINISHED),
    "server": ("e k", np.int16, -1),
    "picked": ("e k", np.int16, -1),
    "attempts": ("e k", np.int8, 0),
    "fallback": ("e k fallbacks", np.int16, -1),
    "timeline": ("e t n", float, 0),
}
ASKED: Fields = {
    "model": ("e", int, 0),
    "balancer": ("e", int, 0),
    "rows": ("e", float, 1),
    "key": ("e", np.uint64, 0),
    "deadline_s": ("e", float, np.inf),
    "priority": ("e", float, 0),
    "number": ("e", np.uint64, 0),
    "uniform": ("e", float, 0),
    "now_s": ("e", float, 0),
}
HEAP: Fields = {
    "at_s": ("e heap", float, 0),
    "payload": ("e heap", int, 0),
    "size": ("e", int, 0),
    "lasting": ("e", int, 0),
}
KNOWN: Fields = {
    "number": ("e b", int, 0),
    "fresh_until_s": ("e b", float, -np.inf),
    "eligible": ("ebm n", np.bool_, False),
    "eligible_count": ("ebm", int, 0),
    "added": ("r", np.bool_, False),
    "draining": ("r", np.bool_, False),
    "ready": ("r", np.bool_, False),
    "report_number": ("r", int, -1),
    "incarnation": ("r", int, -1),
    "position": ("r", int, 0),
    "executions": ("r m rows", float, 0),
    "seconds": ("r m rows", float, 0),
    "executions_seen": ("r m rows", float, 0),
    "seconds_seen": ("r m rows", float, 0),
    "executions_all": ("r m", float, 0),
    "executed_rows": ("r m", float, 0),
    "answered": ("r m", float, 0),
    "lines": ("e m line", float, 0),
    "batches": ("e executed batch", float, 0),
}
