"""`python -m experiments.live_fidelity`: the same requests through the demo's real stack and through the simulator."""
