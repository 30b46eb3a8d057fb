"""What dashboards of the Gateway API Inference Extension read, of what is counted anyway."""

from prometheus_client.parser import text_string_to_metric_families
from support.fleets import make_router, model, report

from balancer.scheduler.events import WorkerAdded
from balancer.server.metrics import Metrics
from balancer.server.metrics.inference import inference_metrics


def test_requests_durations_and_queues_stand_under_the_extensions_names() -> None:
    router = make_router(2, models=[model(pending=4.0)])
    router.observe(WorkerAdded("w2"), 0.0)
    metrics = Metrics(router, lambda: 0.0)
    metrics.register(lambda: inference_metrics(metrics, router, "triton"))
    for worker, status, count in (
        ("w0", "grpc_0", 3),
        ("w1", "http_200", 2),
        ("w1", "grpc_14", 1),
        ("w1", "http_503", 1),
    ):
        metrics.requests_of("m", worker, status).inc(count)
    metrics.requests_of("", "w0", "grpc_0").inc(9)
    metrics.latency_of("m", "w0").observe(0.003)
    metrics.latency_of("m", "w1").observe(0.3)
    samples = {
        (
            each.name,
            *(each.labels.get(label, "") for label in ("model_name", "error_code", "model_server_pod", "le")),
        ): (each.value)
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for each in family.samples
        if each.name.startswith("inference_")
    }
    assert samples["inference_objective_request_total", "m", "", "", ""] == 7
    assert samples["inference_objective_request_error_total", "m", "grpc_14", "", ""] == 1
    assert samples["inference_objective_request_error_total", "m", "http_503", "", ""] == 1
    duration = "inference_objective_request_duration_seconds"
    assert samples[f"{duration}_bucket", "m", "", "", "0.005"] == 1
    assert samples[f"{duration}_bucket", "m", "", "", "+Inf"] == samples[f"{duration}_count", "m", "", "", ""] == 2
    assert samples[f"{duration}_sum", "m", "", "", ""] == 0.303
    assert samples["inference_pool_ready_pods", "", "", "", ""] == 2
    assert samples["inference_pool_average_queue_size", "", "", "", ""] == 4
    assert samples["inference_pool_per_pod_queue_size", "", "", "w0", ""] == 4
    assert samples["inference_pool_per_pod_queue_size", "", "", "w2", ""] == 0


def test_caches_of_keys_and_values_are_as_full_as_those_say_that_tell() -> None:
    router = make_router(2, models=[model(memory_tokens=1000, held_tokens=250)])
    router.observe(report("w0", 2, [model(memory_tokens=3000, held_tokens=2250)]), 0.0)
    router.observe(WorkerAdded("w2"), 0.0)
    router.observe(report("w2"), 0.0)
    metrics = Metrics(router, lambda: 0.0)
    metrics.register(lambda: inference_metrics(metrics, router, "triton"))
    text = metrics.exposition().decode()
    assert 'inference_pool_average_kv_cache_utilization{name="triton"} 0.5' in text
    assert [line for line in text.split("\n") if line.startswith("balancer_worker_memory_share{")] == [
        'balancer_worker_memory_share{worker="w0"} 0.75',
        'balancer_worker_memory_share{worker="w1"} 0.25',
    ]


def test_without_workers_there_is_nothing_to_average() -> None:
    router = make_router(0)
    metrics = Metrics(router, lambda: 0.0)
    metrics.register(lambda: inference_metrics(metrics, router, "triton"))
    text = metrics.exposition().decode()
    assert 'inference_pool_ready_pods{name="triton"} 0.0' in text
    assert 'inference_pool_average_queue_size{name="triton"} 0.0' in text
    router.observe(WorkerAdded("w0"), 0.0)
    router.observe(report("w0"), 0.0)
    assert 'inference_pool_ready_pods{name="triton"} 1.0' in metrics.exposition().decode()
