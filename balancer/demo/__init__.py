"""The demo, `python -m balancer.demo`: the whole stack, real digits, then every policy under the same bursts."""
