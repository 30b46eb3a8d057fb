"""The kernel's own source as a host: what is compiled for production and simulator, run by CPython as it stands."""

from __future__ import annotations

import numpy as np

from balancer.core.bounds import MAX_FALLBACKS
from balancer.core.kernel import picking
from balancer.core.kernel.answers import Compiler, answering, options_of
from balancer.core.kernel.plain import Kernel, Picked, Sight, ask_of
from balancer.core.kernel.state import Books
from policies.base import FloatArray, Policy, Request


class FromSource(Kernel):
    """Costs worker by worker, lot and fallbacks as the compiled hosts have them; the rest is `Kernel`'s.

    A fault in what only compiled code runs shows here without compiling anything.
    """

    def answer(self, x: Books, policy: Policy, request: Request, view: Sight) -> FloatArray | None:
        """See `Kernel`; None for a third party's policy."""
        found = answering(policy, Compiler())
        if found is None:
            return None
        x.desk.mask[0] = view.mask
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            found.answer(x, options_of(found, len(view.mask)), 0, 0, ask_of(request, view), view.at_s)
        shares: FloatArray = x.desk.shares[0].copy()
        return shares

    def pick(self, x: Books, shares: FloatArray, request: Request, view: Sight) -> Picked | None:
        """See `Kernel`."""
        assert isinstance(request.number, int)
        with np.errstate(over="ignore"):
            uniform = picking.uniform_of(np.uint64(self.seed), np.uint64(request.number))  # type: ignore[arg-type]  # as compiled code has it
        row = picking.draw(shares, uniform)
        if row < 0:
            return None
        x.desk.mask[0] = view.mask
        out = np.zeros(MAX_FALLBACKS, np.int64)
        named = picking.name_fallbacks(x, 0, 0, row, ask_of(request, view), view.at_s, out)
        share = float(shares[row] / picking.total_of(shares))
        return Picked(row, share, tuple(out[:named].tolist()), picking.among(x, 0))
