"""The front end `proxy`: the balancer forwards inferences itself."""
