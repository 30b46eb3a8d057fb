import support.benchmarks_package  # noqa: F401  # importing it is what it is for
