"""Front ends beside Envoy alone over upstreams that answer at once, so that what is measured is the gateway."""
