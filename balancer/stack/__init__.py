"""Real processes on one machine: Envoy, Triton servers, agents, and `balancer up` which runs them together."""
