"""Front ends beside Envoy alone over upstreams that answer at once, so that what is measured is the gateway.

`measure.py`: Envoy alone, `pick` and `native`. `inside.py`: a decision as Envoy's module makes it. `peers.py`: other
gateways beside them.
"""
