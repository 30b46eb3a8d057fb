"""Policies on scenarios that nobody has looked at: drawn from a written distribution, by a seed that is opened once."""
