"""The demo, `python -m tools.demo`: the whole stack, real digits, then every policy under the same bursts."""
