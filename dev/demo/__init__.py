"""The demo, `python -m dev.demo`: the whole stack, real digits, then every policy under the same bursts."""
