"""Speed and memory, measured on the real parts: `make bench`, or `python -m benchmarks --help`."""
