"""The kernel: what balancers decide by, over arrays, in plain functions that CPython runs and numba compiles."""
