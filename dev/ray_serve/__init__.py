"""A real Ray cluster of one node with Serve, for tests and benchmarks."""
