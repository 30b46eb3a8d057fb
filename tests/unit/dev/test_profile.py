"""What `balancer profile` makes of a server's statistics; the server is a double whose every execution is known."""

from typing import Any, ClassVar

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from balancer.profile import measure as measuring
from balancer.profile.measure import ProfileError, Profiler, Sweep

MS = 1_000_000


class FakeClient:
    """Executes a batch of r rows in 10 r ms, and 2 ms more each time; 1 ms of it gathers inputs."""

    others: tuple[int, ...] = ()
    """Batches of other clients that are executed with each of ours."""
    merged = 0
    """Rows of others that every batch of ours has."""
    counts = True
    config: ClassVar[dict[str, Any]] = {"max_batch_size": 4}

    def __init__(self, address: str, **_: Any) -> None:
        self.executed: list[tuple[int, int]] = [(1, 77 * MS)]

    def close(self) -> None: ...

    def get_server_metadata(self, **_: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="t", version="2")

    def get_model_metadata(self, model: str, **_: Any) -> Any:
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata(name="X", datatype="FP32", shape=[-1, 2])
        return service_pb2.ModelMetadataResponse(name=model, versions=["9", "10"], inputs=[tensor])

    def get_model_config(self, model: str, **_: Any) -> Any:
        return service_pb2.ModelConfigResponse(config=model_config_pb2.ModelConfig(name=model, **self.config))

    def infer(self, model: str, inputs: Any, version: str, **_: Any) -> None:
        rows = int(inputs[0].shape()[0]) + self.merged
        if self.counts:
            self.executed.append((rows, (10 * rows + 2 * len(self.executed)) * MS))
            self.executed += [(other, 5 * MS) for other in self.others]

    def get_inference_statistics(self, model: str, version: str, **_: Any) -> Any:
        response = service_pb2.ModelStatisticsResponse()
        statistics = response.model_stats.add(name=model, version=version)
        for rows in {rows for rows, _ in self.executed}:
            ns = [time_ns for size, time_ns in self.executed if size == rows]
            batch = statistics.batch_stats.add(batch_size=rows)
            for part, total in ((batch.compute_input, MS * len(ns)), (batch.compute_infer, sum(ns) - MS * len(ns))):
                part.count, part.ns = len(ns), total
        return response


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    class Client(FakeClient):
        pass

    monkeypatch.setattr(measuring.triton, "InferenceServerClient", Client)
    monkeypatch.setattr(measuring, "_COUNTED_WITHIN_S", 0.0)
    return Client


def measure(sweep: Sweep) -> tuple[Any, Profiler, list[tuple[str, int]]]:
    done: list[tuple[str, int]] = []
    profiler = Profiler("nowhere:1", sweep, lambda model, point: done.append((model, point.rows)))
    return profiler.profile("T4", ["m"]).models[0], profiler, done


def test_warm_up_and_what_was_before_do_not_count(client: type[FakeClient]) -> None:
    model, profiler, done = measure(Sweep(executions=3, warm_up=2))
    assert (model.version, model.max_batch_rows, model.instances) == ("10", 4, 1)
    assert done == [("m", 1), ("m", 2), ("m", 4)]
    # Executions 3, 4 and 5 of one row, after one of somebody else's and two to warm up.
    assert model.points[0].mean_s == pytest.approx((10 + 2 * 4) * 1e-3)
    assert model.points[0].std_s == pytest.approx(2e-3)
    assert model.points[0].input_s == pytest.approx(1e-3)
    assert model.points[2].mean_s == pytest.approx((40 + 2 * (1 + 3 * 5 - 2)) * 1e-3)
    assert {point.executions for point in model.points} == {3}
    assert not profiler.shared


def test_time_ends_a_size_but_not_before_its_first_execution(client: type[FakeClient]) -> None:
    model, _, _ = measure(Sweep(seconds=0.0, warm_up=0))
    assert [(point.rows, point.executions, point.std_s) for point in model.points] == [
        (1, 1, None),
        (2, 1, None),
        (4, 1, None),
    ]


@pytest.mark.parametrize("others", [(3,), (2,)])
def test_other_clients_are_noticed(client: type[FakeClient], others: tuple[int, ...]) -> None:
    client.others = others
    _, profiler, _ = measure(Sweep(batches=(2,), executions=2))
    assert profiler.shared == {"m"}


def test_requests_merged_with_those_of_others_are_no_measure(client: type[FakeClient]) -> None:
    client.merged = 3
    with pytest.raises(
        ProfileError, match="a request of 1 rows was executed in a batch of 4: other clients send to it"
    ):
        measure(Sweep(batches=(1,)))


def test_a_server_that_counts_nothing(client: type[FakeClient]) -> None:
    client.counts = False
    with pytest.raises(ProfileError, match="answered 1 rows and counted no execution; have its statistics on"):
        measure(Sweep())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ensemble_scheduling": {}}, "is an ensemble, which executes nothing itself"),
        ({"response_cache": {"enable": True}}, "answers from its response cache"),
    ],
)
def test_models_that_single_requests_do_not_measure(
    client: type[FakeClient], config: dict[str, Any], message: str
) -> None:
    client.config = config
    with pytest.raises(ProfileError, match=message):
        measure(Sweep())


def test_instances_are_those_of_all_groups_on_all_their_gpus(client: type[FakeClient]) -> None:
    client.config = {"max_batch_size": 1, "instance_group": [{"count": 2, "gpus": [0, 1]}, {"count": 1}]}
    model, _, _ = measure(Sweep(executions=1, warm_up=0))
    assert model.instances == 5
