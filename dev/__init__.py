"""What is run beside the balancer: benchmarks, experiments, attacks, the soak and the demo (see README.md)."""
