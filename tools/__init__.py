"""What is run beside the balancer: load, a whole stack on one machine, the demo, the measuring of a Triton."""
