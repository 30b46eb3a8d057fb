"""Which workers exist, which are drained by hand, and the objectives of their pool."""
