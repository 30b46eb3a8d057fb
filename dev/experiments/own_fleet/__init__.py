"""A router trained on one fleet's own log: on fleets that nobody has looked at, judged where only the truth is."""
