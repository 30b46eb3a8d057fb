"""The network in torch is the one that serves."""

from __future__ import annotations

import numpy as np
import pytest
from support.views import FakeView, make_view

from policies.base import Request
from policies.learned.features import inputs
from policies.learned.network import Network, shapes
from policies.learned.policy import shares

torch = pytest.importorskip("torch", reason="torch is not installed; make setup installs it")

from simulator.train.collect import QUEUE, STATE  # noqa: E402  # after the check for torch
from simulator.train.ppo import Actor, Critic  # noqa: E402

COLUMNS = ("in_flight", "pending", "reported_pending", "backlog_s", "completion_s", "service_s", "latency_s")


def random_network(generator: np.random.Generator, hidden: int) -> Network:
    made = {name: 0.4 * generator.normal(size=shape) for name, shape in shapes(hidden).items()}
    return Network(**made | {"beta": np.array(generator.uniform(1, 40))})


def random_view(generator: np.random.Generator, leading: tuple[int, ...], workers: int) -> FakeView:
    columns = {name: generator.lognormal(-2, 2, (*leading, workers)) for name in COLUMNS}
    eligible = generator.random((*leading, workers)) < 0.8
    eligible[..., 0] = True
    columns["report_age_s"] = generator.exponential(0.1, (*leading, workers))
    return make_view(workers, leading=leading, eligible=eligible, error_rate=generator.random(workers) / 5, **columns)


def tensors(view: FakeView, request: Request, dtype: torch.dtype) -> list[torch.Tensor]:
    given = inputs(request, view)
    relative_cost = np.where(view.eligible, given.relative_cost, 0.0)
    numbers = [torch.tensor(column, dtype=dtype) for column in (given.features, given.terms, relative_cost)]
    return [*numbers, torch.tensor(view.eligible)]


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 16, 64, 257])
@pytest.mark.parametrize("hidden", [1, 8, 32])
def test_probabilities_are_those_that_serve(workers: int, hidden: int) -> None:
    generator = np.random.default_rng((workers, hidden))
    for _ in range(10):
        network, view = random_network(generator, hidden), random_view(generator, (4,), workers)
        request = Request("m", rows=3, deadline_s=0.2)
        actor = Actor(network).double()
        given = tensors(view, request, torch.float64)
        with torch.no_grad():
            probabilities = actor(*given).exp().numpy()
        numpy_inputs = inputs(request, view)
        served = actor.network()  # weights as they were rounded to single precision
        assert probabilities == pytest.approx(shares(served, numpy_inputs, view), abs=1e-5)


def test_in_single_precision_as_in_training_it_agrees_where_costs_are_alike() -> None:
    generator = np.random.default_rng(1)
    network = random_network(generator, 8)._replace(beta=np.array(20.0))
    completion_s = generator.uniform(0.02, 0.2, (200, 12))
    view = make_view(leading=(200,), completion_s=completion_s, backlog_s=completion_s / 2, pending=3.0, service_s=0.01)
    with torch.no_grad():
        probabilities = Actor(network)(*tensors(view, Request("m"), torch.float32)).exp().numpy()
    assert probabilities == pytest.approx(shares(network, inputs(Request("m"), view), view), abs=1e-3)


def test_a_network_comes_out_as_it_went_in() -> None:
    network = random_network(np.random.default_rng(2), 4)
    for name, array in Actor(network).network()._asdict().items():
        assert array == pytest.approx(getattr(network, name), rel=1e-6), name
        assert array.shape == getattr(network, name).shape
        assert array.dtype == np.float64


def test_gradients_are_finite_with_workers_that_cannot_be_picked() -> None:
    generator = np.random.default_rng(3)
    actor, view = Actor(random_network(generator, 4)), random_view(generator, (5,), 6)
    logarithms = actor(*tensors(view, Request("m"), torch.float32))
    assert torch.isneginf(logarithms[torch.tensor(~view.eligible)]).all()
    logarithms[:, 0].sum().backward()
    for name, parameter in actor.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_the_critic_does_not_see_workers_that_cannot_be_picked() -> None:
    generator = np.random.default_rng(4)
    critic, view = Critic(4), random_view(generator, (5,), 6)
    for parameter in critic.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(0))
    features, _, _, eligible = tensors(view, Request("m"), torch.float32)
    queue, state = torch.rand(5, 6, len(QUEUE)), torch.rand(5, len(STATE))
    before = critic(features, queue, state, eligible)
    features[~eligible] += 1.0
    queue[~eligible] += 1.0
    assert torch.equal(critic(features, queue, state, eligible), before)
    features[eligible] += 1.0
    assert not torch.equal(critic(features, queue, state, eligible), before)
