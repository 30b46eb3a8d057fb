"""The requests of a run: when they come, and what each asks for."""
