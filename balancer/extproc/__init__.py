"""What speaks with Envoy, for each request and each endpoint (see README.md)."""
