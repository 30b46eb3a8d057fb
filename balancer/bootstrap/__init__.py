"""Envoy's bootstrap: the template, and what a config changes in it."""
