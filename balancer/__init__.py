"""A load balancer for Triton inference fleets: Envoy asks it which worker serves each request."""
