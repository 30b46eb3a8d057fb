"""Envoy alone, `pick` and `native` over the same upstreams, in alternation: `python -m benchmarks.frontends`."""
