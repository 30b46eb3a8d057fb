"""Load generation: arrivals made from a seed, sent to a listener on schedule, and what came back."""
