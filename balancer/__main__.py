"""`python -m balancer` is `balancer`."""

from balancer.cli import main

main()
