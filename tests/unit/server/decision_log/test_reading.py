"""What was recorded is read back in every bit; what is damaged is told with its place and the remedy."""

import dataclasses
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.decision_logs import LIMITS, history, recorded, write
from support.fleets import make_router, model, report

from balancer.kernel.settings import EstimatorSettings, Limits, ModelSettings, Settings
from balancer.scheduler.after_decision import Answered, Decision
from balancer.scheduler.errors import RoutingError, Shed
from balancer.scheduler.events import Finished, Void, Withdrawn, WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.decision_log import lines as log_lines
from balancer.server.decision_log.lines import COLUMNS, COLUMNS_SINCE, VERSION
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLogError
from balancer.server.decision_log.recording import Recording
from policies import BUILTIN
from policies.base import Request
from policies.least_requests import LeastRequests
from policies.power_of_two import PowerOfTwo
from simulator.replay import columns_of


class Witness:
    """Remembers by itself what the recording should have."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.seen: list[tuple[Request, dict[str, np.ndarray], np.ndarray, Decision | None]] = []
        self.refusals: list[tuple[Request, str]] = []

    def decided(self, answered: Answered, decision: Decision | None) -> None:
        names = (*COLUMNS, "eligible", "weight", "name_hash", "identity", "kind_identity")
        columns = {name: getattr(answered.view, name).copy() for name in names}
        self.seen.append((answered.request, columns, answered.probabilities.copy(), decision))
        self.recording.decided(answered, decision)

    def refused(self, request: Request, error: RoutingError, at_s: float) -> None:
        self.refusals.append((request, str(error)))
        self.recording.refused(request, error, at_s)


def test_everything_is_read_back_in_every_bit(tmp_path: Path) -> None:

    router = Router(BUILTIN["expected_latency"](), LIMITS, seed=2)
    files, recording = write(tmp_path, router, seed=2, max_file_bytes=20_000)
    observer = Witness(recording)
    router.observer = observer
    history(router, recording, np.random.default_rng(2), 300)
    files.close(wait_s=30)
    log = read_log(tmp_path)
    assert len(log) == len(observer.seen)
    assert [(refusal.request, refusal.run) for refusal in log.refusals] == [(q, 0) for q, _ in observer.refusals]
    assert len(log) + len(log.refusals) == 300
    for decision, (request, columns, probabilities, made) in zip(log, observer.seen, strict=True):
        assert decision.request == request
        assert decision.probabilities.tobytes() == probabilities.tobytes()
        assert decision.eligible.tobytes() == columns["eligible"].tobytes()
        for column, name in zip(decision.columns, COLUMNS, strict=True):
            assert column.tobytes() == columns[name].tobytes(), name
        assert decision.workers.weight.tobytes() == columns["weight"].tobytes()
        assert decision.workers.name_hash.tobytes() == columns["name_hash"].tobytes()
        seen_again = columns_of([decision])
        assert seen_again.identity[0].tobytes() == columns["identity"].tobytes()
        assert seen_again.kind_identity[0].tobytes() == columns["kind_identity"].tobytes()
        assert made is not None
        assert decision.workers.names[decision.pick] == made.worker
        assert (decision.propensity, decision.fallbacks, decision.at_s) == (made.propensity, made.fallbacks, made.at_s)
    assert any(math.isinf(decision.columns[COLUMNS.index("report_age_s")].max()) for decision in log)
    assert len(log.runs) == 1
    assert {device for decision in log for device in decision.workers.devices} == {"gpu-0", "gpu-1", ""}


def test_decisions_meet_their_outcomes(tmp_path: Path) -> None:
    router = make_router(3)
    files, recording = write(tmp_path, router)
    decisions = [router.route(Request("m"), at_s) for at_s in (1.0, 2.0, 3.0, 4.0)]
    names = router.fleet.names
    other = next(name for name in names if name != decisions[1].worker)
    for event in (
        Finished(0, decisions[0].worker, 0.25, True),
        Finished(1, other, None, False),
        Withdrawn(2),
        Finished(-1, "w0", 0.5, True),  # Envoy's own pick
        Finished(99, "w0", 0.5, True),
    ):
        recording.ended(event, 5.0)
    files.close(wait_s=30)
    joined = read_log(tmp_path).joined()
    assert joined.number.tolist() == [0, 1, 2, 3]
    assert joined.at_s.tolist() == [1, 2, 3, 4]
    assert joined.finished.tolist() == [True, True, False, False]
    assert joined.ok.tolist() == [True, False, False, False]
    assert joined.served.tolist() == [names.index(decisions[0].worker), names.index(other), -1, -1]
    assert joined.pick.tolist() == [names.index(decision.worker) for decision in decisions]
    assert joined.propensity.tolist() == [decision.propensity for decision in decisions]
    np.testing.assert_array_equal(joined.latency_s, [0.25, np.nan, np.nan, np.nan])


def test_runs_with_the_same_numbers_are_kept_apart(tmp_path: Path) -> None:
    for process in ("0", "1"):
        router = make_router(2)
        files, recording = write(tmp_path, router, process=process, seed=int(process))
        made = router.route(Request("m"), 1.0)
        recording.ended(Finished(0, made.worker, float(process), True), 2.0)
        files.close(wait_s=30)
    log = read_log(tmp_path)
    assert [run.seed for run in log.runs] == [0, 1]
    assert log.joined().latency_s.tolist() == [0, 1]
    assert len(read_log(tmp_path / "decisions-1-000001.jsonl.gz")) == 1


def test_a_share_is_recorded_with_its_outcomes(tmp_path: Path) -> None:
    router = make_router(2)
    files, recording = write(tmp_path, router, share=0.25)
    for _ in range(400):
        made = router.route(Request("m"), 1.0)
        recording.ended(Finished(made.number, made.worker, 0.1, True), 1.0)
    files.close(wait_s=30)
    log = read_log(tmp_path)
    assert 60 < len(log) < 140
    assert log.joined().finished.all()
    assert len(log.outcomes) == len(log)


def test_a_swapped_policy_and_a_new_device_are_known_from_then_on(tmp_path: Path) -> None:
    router = make_router(2)
    files, _ = write(tmp_path, router)
    router.route(Request("m"), 1.0)
    router.configure(LeastRequests(), router.settings)  # the same once more
    router.observe(report("w0", 2, device="H100"), 2.0)
    router.route(Request("m"), 2.0)
    router.configure(PowerOfTwo(choices=3), router.settings)
    router.route(Request("m"), 3.0)
    files.close(wait_s=30)
    first, second, third = read_log(tmp_path)
    assert first.policy is second.policy
    assert (third.policy.name, json.loads(third.policy.options)) == ("power_of_two", {"choices": 3, "weighted": False})
    assert third.policy.build() == PowerOfTwo(choices=3)
    assert first.workers.devices == ("", "")
    assert second.workers.devices == ("H100", "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of one file, in one gzip member."""
    folder = tmp_path_factory.mktemp("whole")
    recorded(folder, LeastRequests(), requests=50)
    (file,) = folder.iterdir()
    return gzip.compress(gzip.decompress(file.read_bytes()))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.9999])
def test_a_file_cut_in_the_middle_is_read_up_to_there(whole: bytes, share: float, tmp_path: Path) -> None:
    file = tmp_path / "decisions-0-000001.jsonl.gz"
    file.write_bytes(whole)
    all_of_it = read_log(tmp_path)
    file.write_bytes(whole[: int(len(whole) * share)])
    log = read_log(tmp_path)
    assert 0 < len(log) < len(all_of_it) or share == 0.9999
    assert [d.request.number for d in log] == [d.request.number for d in all_of_it][: len(log)]
    (cut,) = log.cut
    assert str(file) in cut
    assert "ends in the middle of line" in cut


def test_a_file_that_was_never_begun_hides_no_other(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "decisions-0-000001.jsonl.gz").write_bytes(whole)
    (tmp_path / "decisions-0-000002.jsonl.gz").write_bytes(b"")
    log = read_log(tmp_path)
    assert len(log) > 0
    assert ["is empty" in cut for cut in log.cut] == [True]


def edited(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[bytes], bytes]:
    def edit(whole: bytes) -> bytes:
        lines = [json.loads(line) for line in gzip.decompress(whole).splitlines()]
        change(lines)
        return gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())

    return edit


def flipped(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]


def place_of(kind: str, lines: list[dict[str, Any]]) -> int:
    return next(place for place, line in enumerate(lines) if kind in line)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (flipped, r"line \d+ is damaged .*copy the file anew"),
        (lambda whole: whole + b"more", r"line \d+ is damaged .*copy the file anew"),
        (lambda whole: b"{}\n", "is no decision log: Not a gzipped file"),
        (lambda whole: gzip.compress(b'{"header": {"format": "else"}}\n'), "it does not begin with the header of one"),
        (lambda whole: gzip.compress(b"text\n"), "line 1 is damaged"),
        (
            edited(lambda lines: lines[0]["header"].update(version=VERSION + 1)),
            f"line 1: format version {VERSION + 1} .*use the version",
        ),
        (
            edited(lambda lines: lines[0]["header"]["columns"].pop()),
            f"line 1: format version {VERSION} with the columns in_fl",
        ),
        (edited(lambda lines: lines[4]["decision"].pop("probabilities")), "line 5 is damaged"),
        (edited(lambda lines: lines[4]["decision"].update(columns="00")), "line 5 is damaged"),
        (edited(lambda lines: lines[4]["decision"].update(worker="nobody")), "line 5 is damaged"),
        (edited(lambda lines: lines.insert(4, {"what": {}})), "line 5 is damaged"),
        (edited(lambda lines: lines[1]["settings"].update(limits=3)), "line 2 is damaged"),
        (edited(lambda lines: lines.pop(2)), "no line of workers is before it"),
    ],
)
def test_damage_is_shown_with_line_and_remedy(
    whole: bytes, spoil: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "decisions-0-000001.jsonl.gz"
    file.write_bytes(spoil(whole))
    with pytest.raises(DecisionLogError, match=words) as caught:
        read_log(tmp_path)
    assert str(file) in str(caught.value)


def test_an_empty_folder_is_shown(tmp_path: Path) -> None:
    with pytest.raises(DecisionLogError, match=r"holds no decisions-\*.jsonl.gz; give the folder"):
        read_log(tmp_path)


def test_limits_and_unknown_models_are_refusals(tmp_path: Path) -> None:

    router = make_router(1, settings=LIMITS)
    files, _ = write(tmp_path, router)
    for _ in range(6):
        router.route(Request("m"), 1.0)
    with pytest.raises(Shed):
        router.route(Request("m", tenant="t"), 1.0)
    with pytest.raises(RoutingError):
        router.route(Request("?"), 1.0)
    files.close(wait_s=30)
    log = read_log(tmp_path)
    assert [(r.reason, r.request.number, r.request.tenant) for r in log.refusals] == [
        ("shed", 6, "t"),
        ("unknown_model", 7, ""),
    ]


def test_what_workers_executed_is_recorded_in_turn_and_again(tmp_path: Path) -> None:
    def counts(worker: str, number: int, executions: int) -> None:
        batches = (1, executions, executions * 0.01), (4, 2 * executions, executions * 0.06)
        known = [model("m", max_batch_rows=8, instances=2, batches=batches)]
        router.observe(report(worker, number, known, balancers=3), float(number))

    router = make_router(0)
    for worker in ("a", "b"):
        router.observe(WorkerAdded(worker), 0.0)
        counts(worker, 1, 5)
    files, _ = write(tmp_path, router)
    for at_s in (1.0, 1.1, 1.2, 2.0):
        router.route(Request("m"), at_s)
    counts("a", 10, 50)
    router.route(Request("m"), 10.0)
    files.close(wait_s=30)
    reported = read_log(tmp_path).service
    assert [(one.worker, one.at_s, one.incarnation, one.balancers) for one in reported] == [
        ("a", 1.0, 1, 3),
        ("b", 1.1, 1, 3),
        ("a", 10.0, 1, 3),
    ]
    assert [one.models[0].batches for one in reported] == [
        ((1, 5, 0.05), (4, 10, 0.3)),
        ((1, 5, 0.05), (4, 10, 0.3)),
        ((1, 50, 0.5), (4, 100, 3.0)),
    ]
    assert {(m.model, m.max_batch_rows, m.instances) for one in reported for m in one.models} == {("m", 8, 2)}


_LATER = {"service", "settings"}


@pytest.mark.parametrize("version", range(1, VERSION))
def test_logs_of_older_versions_are_read(version: int, whole: bytes, tmp_path: Path) -> None:
    lines = [line for line in map(json.loads, gzip.decompress(whole).splitlines()) if not line.keys() & _LATER]
    lines[0]["header"]["version"] = version
    since = [name for when, names in COLUMNS_SINCE.items() if when > version for name in names]
    kept = len(COLUMNS) - len(since)
    assert lines[0]["header"]["columns"][kept:] == since
    del lines[0]["header"]["columns"][kept:]
    for line in lines:
        if "decision" in line:
            columns = line["decision"]["columns"]
            line["decision"]["columns"] = columns[: len(columns) // len(COLUMNS) * kept]
            del line["decision"]["prefix"]
    file = tmp_path / "decisions-0-000001.jsonl.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    log = read_log(file)
    assert len(log) > 0
    assert not log.service
    assert log.settings is None
    assert all(not decision.columns[kept:].any() for decision in log)
    assert any(decision.columns[0].any() for decision in log)


@pytest.mark.parametrize(("void", "counts"), [("", True), ("request", True), ("deadline", True), ("client", False)])
def test_what_the_client_ended_is_no_outcome_of_a_worker(void: Void, counts: bool) -> None:
    content = json.loads(log_lines.outcome(Finished(7, "w", 0.1, False, void), 1.0))["outcome"]
    assert ("worker" in content) is counts
    assert counts or log_lines.outcome(Finished(7, "w", 0.1, False, void), 1.0) == log_lines.outcome(Withdrawn(7), 1.0)


def test_the_routers_settings_are_read_back_as_they_were(tmp_path: Path) -> None:
    """But for service times measured beforehand, which are many and no setting of a simulation."""
    profiled = EstimatorSettings(key_memory=70.0, profiles={("T4", "m"): (0.1, 0.2)})
    settings = Settings(
        {"m": ModelSettings(versions=("2",))}, Limits(max_pending_per_worker=3), stale_after_s=2.5, estimators=profiled
    )
    router = Router(LeastRequests(), settings)
    files, _ = write(tmp_path, router)
    with pytest.raises(RoutingError):
        router.route(Request("m"), 1.0)
    files.close(wait_s=30)
    wanted = dataclasses.replace(settings, estimators=EstimatorSettings(key_memory=70.0))
    assert read_log(tmp_path).settings == wanted


def test_an_answer_that_ends_in_the_next_file_began_in_this_one(tmp_path: Path) -> None:
    router = make_router(2)
    files, recording = write(tmp_path, router)
    decision = router.route(Request("m", prompt_tokens=9.0), 1.0)
    recording.began(decision.number, 1.5)
    recording.ended(Finished(decision.number, decision.worker, 2.0, True, "", 4.0), 3.0)
    files.close(wait_s=30)
    (file,) = tmp_path.glob("*.gz")
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    parts = {1: lines[:-1], 2: [lines[0], lines[-1]]}
    for number, part in parts.items():
        (tmp_path / f"decisions-0-{number:06}.jsonl.gz").write_bytes(gzip.compress(b"".join(part)))
    (end,) = read_log(tmp_path).outcomes.values()
    assert (end.first_s, end.said_s, end.output_tokens) == (1.5, 3.0, 4.0)
