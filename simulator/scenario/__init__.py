"""Scenarios: files that say which fleet serves which requests."""

from simulator.scenario.scenario import Scenario, Split, load_scenario, scenario_names

__all__ = ["Scenario", "Split", "load_scenario", "scenario_names"]
