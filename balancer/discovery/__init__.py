"""Which workers exist: sources that yield lists of them, and the events that a change of list means."""
