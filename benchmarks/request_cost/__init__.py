"""What the module's reader takes for a request: `python -m benchmarks.request_cost`."""
