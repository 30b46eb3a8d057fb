"""Routers before the same emulated language models, under the same prompts; and what the simulator says of ours."""
