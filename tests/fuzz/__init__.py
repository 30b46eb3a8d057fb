"""Random attackers: against every port of a real balancer behind a real Envoy, and against the module's C alone."""
