from dataclasses import replace

from unit.experiments.held_out.synthetic import make_scenario

from experiments.held_out.kinds import BALANCERS, BURSTY, HETEROGENEOUS, KEYS, STALE, counts, kinds
from simulator.scenario import load_scenario, scenario_names
from simulator.spec import Reports


def test_what_the_held_out_scenarios_are():
    found = {name: kinds(load_scenario(name)) for name in scenario_names("held-out")}
    assert found == {
        "azure-code": (HETEROGENEOUS, BURSTY),
        "azure-conversation": (HETEROGENEOUS, BURSTY),
        "big-fleet": (HETEROGENEOUS, BURSTY, BALANCERS),
        "deep-overload": (HETEROGENEOUS, BURSTY),
        "large-requests": (HETEROGENEOUS,),
        "rolling-failures": (HETEROGENEOUS, BURSTY, BALANCERS),
        "sessions": (HETEROGENEOUS, KEYS),
        "spikes": (HETEROGENEOUS, BURSTY),
        "three-balancers": (HETEROGENEOUS, STALE, BALANCERS),
        "volta-turing": (HETEROGENEOUS, BURSTY),
    }


def test_all_but_those_with_keys_worth_following_count():
    assert [name for name in scenario_names("held-out") if not counts(load_scenario(name))] == ["sessions"]


def test_one_of_the_properties_is_enough():
    alike = make_scenario(speeds=(1.0, 1.0))
    assert not counts(alike)
    for changed in ({"balancers": 2}, {"reports": Reports(loss=0.1)}, {"reports": Reports(period_s=0.2)}):
        assert counts(replace(alike, fleet=replace(alike.fleet, **changed)))
