"""Scenarios: files that say which fleet serves which requests."""
