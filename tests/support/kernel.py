"""The kernel's own source as a host: what is compiled for production and simulator, run by CPython as it stands."""

import numpy as np

from balancer.bounds import MAX_FALLBACKS
from balancer.kernel.deciding import deciding
from balancer.kernel.limits_and_draw import uniform_of
from balancer.kernel.policy_answers import Compiler, answering, options_of
from balancer.kernel.python_kernel import Kernel, Picked, features_of
from balancer.kernel.state import AMONG, FOUND_COLUMNS, NAMED, PROPENSITY, FleetState, RequestFeatures
from balancer.kernel.view import LiveFleet, LiveView
from policies.base import BoolArray, FloatArray, Policy, Request


class FromSource(Kernel):
    """Costs worker by worker, draw and fallbacks as the compiled hosts have them; the rest is `Kernel`'s.

    A fault in what only compiled code runs shows here without compiling anything.
    """

    def answer(self, x: FleetState, policy: Policy, request: Request, view: LiveView) -> FloatArray | None:
        """See `Kernel`; None for a third party's policy."""
        found = answering(policy, Compiler())
        if found is None:
            return None
        x.decision.mask[0] = view.mask
        self.lay_out_prompt(x, request, view.column)
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            found.answer(x, options_of(found, len(view.mask)), 0, 0, request_of(request, view), view.at_s)
        shares: FloatArray = x.decision.shares[0].copy()
        return shares

    def decide(
        self,
        x: LiveFleet,
        policy: Policy,
        request: Request,
        number: int,
        column: int,
        mask: BoolArray,
        now_s: float,
        how: int,
        one: int = -1,
    ) -> Picked:
        """See `Kernel`."""
        made = answering(policy, Compiler())
        if made is None:
            return super().decide(x, policy, request, number, column, mask, now_s, how, one)
        self.policy_answer = None
        x.decision.mask[0] = mask
        self.lay_out_prompt(x, request, column)
        found, fallbacks, features = (
            np.zeros(FOUND_COLUMNS),
            np.zeros(MAX_FALLBACKS, np.int64),
            features_of(request, number, column),
        )
        options, decide = options_of(made, len(mask)), deciding(made.answer, Compiler())
        with np.errstate(over="ignore"):
            uniform = uniform_of(np.uint64(self.seed), np.uint64(number))  # type: ignore[arg-type]  # as compiled code has it
            row = decide(x, options, 0, 0, features, now_s, uniform, how, one, found, fallbacks)
        self._found = found
        named = tuple(fallbacks[: int(found[NAMED])].tolist())
        return Picked(row, float(found[PROPENSITY]), named, float(found[AMONG]))


def request_of(request: Request, view: LiveView) -> RequestFeatures:
    """The request of a view, as the kernel's functions take it."""
    assert isinstance(request.number, int)
    return features_of(request, request.number, view.column)
