"""The config: its sections, how a file becomes one, and what follows from it."""
