import pytest

from balancer.agent.agent import AgentOptions
from balancer.errors import OperatorError

GOOD = {"worker": "w", "balancers": ("balancer:9002",)}


def test_defaults_are_those_of_a_triton_beside_the_agent() -> None:
    options = AgentOptions(worker="w", balancers=("balancer:9002", "[::1]:9002"))
    assert (options.triton_grpc, options.triton_metrics) == ("127.0.0.1:8001", "127.0.0.1:8002")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"worker": ""}, "worker is empty"),
        ({"balancers": ()}, "balancers is empty"),
        ({"balancers": ("balancer",)}, "balancers: 'balancer' is not host:port"),
        ({"triton_grpc": "host:port"}, "triton_grpc: 'host:port' is not host:port"),
        ({"triton_metrics": "host:70000"}, "triton_metrics: 'host:70000' is not host:port"),
        ({"report_hz": 5.0}, "report_hz: 5.0 is out of range; choose 20 to 100"),
        ({"report_hz": float("nan")}, "report_hz: nan is out of range"),
        ({"memory_bytes": -1}, "memory_bytes: -1 is negative"),
    ],
)
def test_bad_options_are_refused_by_name(option: dict[str, object], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        AgentOptions(**(GOOD | option))  # type: ignore[arg-type]  # bad on purpose
