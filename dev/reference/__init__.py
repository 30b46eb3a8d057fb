"""What happens in a simulated fleet, in plain Python: slow, short, and around the production router.

This is the rule. The engine (`simulator/engine`) must give the same decisions and latencies, bit for bit.
"""

from dev.reference.simulation import Simulation, simulate

__all__ = ["Simulation", "simulate"]
