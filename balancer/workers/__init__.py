"""The way from the balancer to the workers: their ports."""
