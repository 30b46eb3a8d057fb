"""One module a command; `balancer.cli.main` imports those that are used."""
