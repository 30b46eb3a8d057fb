import math

import numpy as np
import pytest
from support.weights import write_weights
from unit.dev.experiments.live.synthetic import EASY, MODELS, PROFILES

from dev.experiments.live import twin
from dev.experiments.live.record import Recording
from dev.experiments.live.session import Session
from policies import BUILTIN
from simulator.run import run

SESSION = Session(policies=("least_requests", "round_robin"), rounds=1, window_s=1.0, settle_s=0.5, pause_s=0.5)


def test_the_fleet_is_what_the_parts_were_measured_to_be():
    fleet = twin.fleet(PROFILES, EASY, MODELS)
    assert [(worker.name, worker.device) for worker in fleet.workers] == [("worker-0", "A100"), ("worker-1", "T4")]
    tft, _, large = fleet.models
    assert tft.service["T4"].device_s == pytest.approx((0.004, 0.064))
    assert tft.noise.cv == pytest.approx(0.1)
    # As triton/models/*/config.pbtxt say.
    assert (tft.batching.max_batch_rows, tft.batching.queue_delay_s) == (64, pytest.approx(0.0005))
    assert (large.batching.max_batch_rows, large.batching.queue_delay_s) == (16, pytest.approx(0.002))
    assert fleet.network.to_worker_s + fleet.network.to_client_s == pytest.approx(0.003)
    assert fleet.network.jitter_s == pytest.approx(0.0, abs=1e-12)
    assert fleet.reports.period_s == pytest.approx(0.02)


def test_the_exponential_fit_finds_what_made_the_quantiles():
    u = (np.arange(100_000) + 0.5) / 100_000
    fixed_s, mean_s = twin.exponential_fit(0.002 - 0.001 * np.log1p(-u))
    assert fixed_s == pytest.approx(0.002, rel=1e-3)
    assert mean_s == pytest.approx(0.001, rel=1e-3)
    # Half of it nothing, the rest more: no constant below zero.
    assert twin.exponential_fit(np.array([0.0, 0.0, 0.0, 1.0, 1.0]))[0] == 0.0
    assert math.isfinite(mean_s)


def test_each_request_of_the_session_is_decided_by_the_policy_whose_turn_it_is():
    fleet = twin.fleet(PROFILES, EASY, MODELS)
    turn = SESSION.turn_of_requests()
    both = twin.simulate(fleet, SESSION, range(2))
    one = twin.arrivals(SESSION.workload())
    first = BUILTIN[SESSION.turns()[0].policy]()
    alone = run(fleet, [one, one], first)
    assert (both.status == 0).all()
    np.testing.assert_array_equal(both.picked[:, turn == 0], alone.picked[:, turn == 0])
    assert (both.picked[:, turn == 1] != alone.picked[:, turn == 1]).any()


def test_a_trained_policy_brings_its_file_along(tmp_path):
    write_weights(tmp_path / "mine.npz")
    policies, file = ("learned", "round_robin"), str(tmp_path / "mine.npz")
    session = Session(policies, rounds=1, window_s=1.0, settle_s=0.5, pause_s=0.5, learned=file)
    result = twin.simulate(twin.fleet(PROFILES, EASY, MODELS), session, range(1))
    assert (result.status == 0).all()


def test_a_recording_is_read_as_it_was_written(tmp_path):
    batches = {"worker-0": {"emulated_tft": {1: 20, 8: 3}}}
    weights, decided = {"worker-0": 1.5, "worker-1": 0.5}, ({"wlpr": 50.0}, {"wlpr": 2.0, "prequal": 48.0})
    written = Recording(SESSION, PROFILES, EASY, EASY, (0.05, 0.06), batches, weights, decided)
    written.save(tmp_path / "recording.json")
    read = Recording.load(tmp_path / "recording.json")
    assert (read.session, read.profiles, read.swaps_s, read.batches) == (SESSION, PROFILES, (0.05, 0.06), batches)
    assert (read.weights, read.decided) == (weights, decided)
    np.testing.assert_array_equal(read.live.latency_s, EASY.latency_s)
    np.testing.assert_array_equal(read.live.deadline_s, EASY.deadline_s)
    assert read.easy.workers == EASY.workers
