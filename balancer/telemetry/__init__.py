"""Both ends of the report stream: the agent beside each Triton, and the collector in the balancer."""
