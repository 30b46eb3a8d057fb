"""What `balancer check` says of forwarding that is asked for in vain."""

from typing import Any

import pytest

from balancer.config import frontend
from balancer.config.config import from_mapping
from balancer.files.yaml_document import ConfigError

FLEET = {"fleet": "127.0.0.1:9200"}
CASCADE = {"cascades": {"vision": ["large", "small"]}}
SURE = {"confidence_cascades": {"sure": {"models": ["small", "large"], "output": "P", "threshold": 0.5}}}


def warned(
    envoy: dict[str, Any], *repeatable: str, proxy: dict[str, Any] | None = None, listen: dict[str, Any] = FLEET
) -> list[str]:
    """What is warned of, where these models are repeatable."""
    models = {name: {"proxy": {"repeatable": True}} for name in repeatable}
    config = from_mapping({"envoy": envoy, "models": {"plain": {}, **models}, "proxy": proxy or {}, "listen": listen})
    return frontend.warnings(config)


def in_vain(section: str, name: str) -> str:
    return (
        f"{section}: has no effect, since the balancer does not forward these requests; "
        f'name "{name}" in envoy.forwarded, or set envoy.frontend: proxy'
    )


@pytest.mark.parametrize("frontend", ["pick", "native", "auto"])
def test_what_is_said_of_a_model_that_is_not_forwarded_is_in_vain(frontend: str) -> None:
    assert warned({"frontend": frontend}, "m") == [in_vain("models.m.proxy", "m")]
    assert warned({"frontend": frontend, "forwarded": ["m"]}, "m", "n") == [in_vain("models.n.proxy", "n")]
    assert warned({"frontend": frontend, "forwarded": ["m", "n"]}, "m", "n") == []


def test_with_the_front_end_proxy_nothing_is_in_vain() -> None:
    assert warned({"frontend": "proxy"}, "m", proxy={**CASCADE, **SURE}) == []


@pytest.mark.parametrize(("cascade", "name"), [(CASCADE, "vision"), (SURE, "sure")])
def test_a_cascade_that_is_forwarded_forwards_to_its_models(cascade: dict[str, Any], name: str) -> None:
    assert warned({"forwarded": [name]}, "large", "small", proxy=cascade) == []
    (section,) = cascade
    assert warned({"forwarded": ["large"]}, "large", "small", proxy=cascade) == [
        in_vain("models.small.proxy", "small"),
        in_vain(f"proxy.{section}.{name}", name),
    ]


def test_a_forwarded_name_that_nothing_has_is_shown_with_the_one_that_is_close() -> None:
    (near,) = warned({"forwarded": ["resnet5", "resnet50"]}, "resnet50")
    assert near.startswith('envoy.forwarded: "resnet5" is no model and no cascade of this config; did you mean "resn')
    assert '"resnet50"? If not, list it under models' in near
    (far,) = warned({"forwarded": ["llama"]})
    assert far.startswith('envoy.forwarded: "llama" is no model and no cascade of this config; if it is a model, list')
    assert warned({"forwarded": ["plain"]}) == []


@pytest.mark.parametrize("envoy", [{"frontend": "proxy"}, {"frontend": "native", "forwarded": ["plain"]}])
def test_rest_is_left_out_without_the_port_for_it(envoy: dict[str, Any]) -> None:
    (warning,) = warned(envoy, listen={"fleet": None})
    assert warning.startswith("listen.fleet: is not set, so only gRPC is forwarded, nothing by HTTP; set it, such as ")
    assert warned(envoy) == []
    assert warned({}, listen={"fleet": None}) == []


ONCE = {"models": {"m": {"proxy": {"once_s": 60}}, "n": {}}, "envoy": {"frontend": "proxy"}}
DNS = {"discovery": {"dns": {"name": "tritons.example"}}}


def of_one_gateway(sections: dict[str, Any]) -> list[str]:
    return [each for each in frontend.warnings(from_mapping(sections)) if "replica" in each]


def test_ids_are_one_gateways() -> None:
    (warning,) = of_one_gateway({**ONCE, **DNS})
    assert warning.startswith("models.m.proxy.once_s: ")


@pytest.mark.parametrize("sections", [ONCE, {**ONCE, **DNS, "envoy": {}}, {**ONCE, **DNS, "models": {"m": {}}}])
def test_who_is_alone_or_executes_nothing_once_is_not_warned(sections: dict[str, Any]) -> None:
    assert of_one_gateway(sections) == []


@pytest.mark.parametrize("frontend", ["native", "pick", "auto"])
def test_some_models_are_forwarded_where_not_all_are(frontend: str) -> None:
    assert from_mapping({"envoy": {"frontend": frontend, "forwarded": ["m"]}}).forwards
    assert not from_mapping({"envoy": {"frontend": frontend}}).forwards
    with pytest.raises(ConfigError, match=r"envoy\.forwarded: .*m, n.* beside envoy\.frontend: proxy, .* set pick"):
        from_mapping({"envoy": {"frontend": "proxy", "forwarded": ["m", "n"]}})
    with pytest.raises(ConfigError, match=r"envoy\.forwarded: .* at most 256"):
        from_mapping({"envoy": {"frontend": frontend, "forwarded": [f"m{number}" for number in range(257)]}})
