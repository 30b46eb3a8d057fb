"""One module a command; `balancer.cli` imports those that are used."""
