"""Other policies judged by a decision log: off-policy estimates, a simulation, and how far to trust each."""
