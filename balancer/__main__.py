"""`python -m balancer` is `balancer`."""

from balancer.cli.main import main

main()
