"""Simulated fleets of Triton servers: the same router, estimators and policies as production. See README.md."""
