"""The event-driven core of the simulator; see README.md."""
