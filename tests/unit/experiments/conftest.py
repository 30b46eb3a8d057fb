import support.repository_packages  # noqa: F401  # importing it is what it is for
