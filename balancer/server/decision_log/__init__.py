"""Decisions on file, bit for bit: what each rested on, what was decided, and how it ended (see README.md)."""
