"""The kernel's own source as a host: what is compiled for production and simulator, run by CPython as it stands."""

from __future__ import annotations

import numpy as np

from balancer.bounds import MAX_FALLBACKS
from balancer.kernel import picking
from balancer.kernel.answers import Compiler, answering, options_of
from balancer.kernel.plain import Kernel, Picked, RequestView, request_of
from balancer.kernel.state import FleetState
from policies.base import FloatArray, Policy, Request


class FromSource(Kernel):
    """Costs worker by worker, lot and fallbacks as the compiled hosts have them; the rest is `Kernel`'s.

    A fault in what only compiled code runs shows here without compiling anything.
    """

    def answer(self, x: FleetState, policy: Policy, request: Request, view: RequestView) -> FloatArray | None:
        """See `Kernel`; None for a third party's policy."""
        found = answering(policy, Compiler())
        if found is None:
            return None
        x.decision.mask[0] = view.mask
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            found.answer(x, options_of(found, len(view.mask)), 0, 0, request_of(request, view), view.at_s)
        shares: FloatArray = x.decision.shares[0].copy()
        return shares

    def pick(self, x: FleetState, shares: FloatArray, request: Request, view: RequestView) -> Picked | None:
        """See `Kernel`."""
        assert isinstance(request.number, int)
        with np.errstate(over="ignore"):
            uniform = picking.uniform_of(np.uint64(self.seed), np.uint64(request.number))  # type: ignore[arg-type]  # as compiled code has it
        row = picking.draw(shares, uniform)
        if row < 0:
            return None
        x.decision.mask[0] = view.mask
        out = np.zeros(MAX_FALLBACKS, np.int64)
        named = picking.name_fallbacks(x, 0, 0, row, request_of(request, view), view.at_s, out)
        share = float(shares[row] / picking.total_of(shares))
        return Picked(row, share, tuple(out[:named].tolist()), picking.among(x, 0))
