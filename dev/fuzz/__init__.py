"""Random attackers against every port of a real balancer behind a real Envoy.

Each input is made from the seed, its kind and its number alone, so that any of them can be sent again.
"""
