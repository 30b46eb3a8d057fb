"""Inferences by HTTP, which the proxy forwards by gRPC."""
