"""Scenarios: files that say which fleet serves which requests."""

from simulator.scenario.scenario import Scenario, Split, load_scenario, long_scenario_names, scenario_names

__all__ = ["Scenario", "Split", "load_scenario", "long_scenario_names", "scenario_names"]
