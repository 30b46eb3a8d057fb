"""The dashboard fits what Grafana wants."""

import re
from itertools import combinations
from typing import Any

from support.exported import dashboard, declared


def plots() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_it_is_one_for_every_installation() -> None:
    content = dashboard()
    assert (content["uid"], "id" in content) == ("balancer-fleet", False)
    first = content["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    sources = [each["datasource"]["uid"] for panel in plots() for each in (panel, *panel["targets"])]
    assert {*sources} == {"${datasource}"}


def test_choices_come_from_what_is_exported() -> None:
    exported = declared()
    _, *variables = dashboard()["templating"]["list"]
    for variable in variables:
        (chosen,) = re.findall(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"])
        assert chosen[1] in exported[chosen[0]] | {"job"}


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in panels)
    ]
    assert all(x < 24 for of_one in cells for x, _ in of_one)
    assert not any(one & other for one, other in combinations(cells, 2))


def test_traced_requests_are_shown_with_what_the_balancer_has_exemplars_of() -> None:
    shown = {target["expr"] for panel in plots() for target in panel["targets"] if target["exemplar"]}
    assert shown
    assert all("balancer_request_duration_seconds_bucket" in expr for expr in shown)


def test_each_query_has_a_letter_and_a_legend() -> None:
    for panel in plots():
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        assert letters, panel["title"]
        for target in panel["targets"]:
            # A label in the legend that the query sums over would show as nothing.
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = re.findall(r"by \(([^)]*)\)", target["expr"])
            recorded = {"model"} if target["expr"].startswith("balancer:") else set()
            assert named <= {label.strip() for labels in kept for label in labels.split(",")} | recorded
