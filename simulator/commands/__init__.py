"""The simulator's commands of `balancer`."""
