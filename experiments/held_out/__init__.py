"""Trained policies judged on the held-out scenarios, against every heuristic; and on fleets of other sizes."""
