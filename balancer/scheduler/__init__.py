"""Pure decisions: events in, a worker out; no I/O, no clock, no random state (see README.md)."""
