"""Picks and plans of one turn, counted in for those who come after, and taken back to the last bit.

A turn works on the estimators themselves, so that every policy sees what was planned in every column.
"""

from __future__ import annotations

from balancer.core.holding.state import Held
from balancer.core.kernel.counting import count_in
from balancer.core.kernel.state import Books


def count_for_now(x: Books, held: Held, e: int, r: int, model: int, rows: float, now_s: float, number: int) -> None:
    """Count a request in, and note what stood there before as note `number`; `take_back` undoes it."""
    q, t, note = x.queue, x.tokens, held.notes[e, number]
    note[0], note[1] = r, model
    note[2], note[3], note[4] = q.in_flight[r], q.charged_until_s[r], q.progress_s[r]
    note[5], note[6] = q.own_work_s[r], q.executing_s[r]
    note[7], note[8], note[9] = q.others[r], q.others_work_s[r], q.others_s[r]
    note[10], note[11] = q.own_rows[r, model], q.waiting_rows[r, model]
    note[12], note[13] = q.own_work_model_s[r, model], q.waiting_model_s[r, model]
    note[14], note[15], note[16] = t.level[r], t.rate_per_s[r], t.at_s[r]
    note[17], note[18] = q.forming_rows[r, model], q.own_requests[r, model]
    count_in(x, e, r, model, rows, now_s)


def take_back(x: Books, held: Held, e: int, count: int) -> None:
    """Undo the first `count` notes, the last one first."""
    q, t = x.queue, x.tokens
    for i in range(count):
        note = held.notes[e, count - 1 - i]
        r, model = int(note[0]), int(note[1])
        q.in_flight[r], q.charged_until_s[r], q.progress_s[r] = note[2], note[3], note[4]
        q.own_work_s[r], q.executing_s[r] = note[5], note[6]
        q.others[r], q.others_work_s[r], q.others_s[r] = note[7], note[8], note[9]
        q.own_rows[r, model], q.waiting_rows[r, model] = note[10], note[11]
        q.own_work_model_s[r, model], q.waiting_model_s[r, model] = note[12], note[13]
        t.level[r], t.rate_per_s[r], t.at_s[r] = note[14], note[15], note[16]
        q.forming_rows[r, model], q.own_requests[r, model] = note[17], note[18]
