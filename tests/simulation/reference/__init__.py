"""`simulator/engine/README.md` in plain Python: slow, short, and around the production router.

The engine must give the same decisions and latencies, bit for bit. Written from that page alone, not from the engine.
"""

from simulation.reference.simulation import Simulation, simulate

__all__ = ["Simulation", "simulate"]
