"""`python -m experiments.live_switchback`: policies in alternating windows on the real stack, and as predicted."""
