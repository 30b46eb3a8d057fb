"""The way from the balancer to the workers: their ports. Nothing is sent a second time here: who calls decides that."""
