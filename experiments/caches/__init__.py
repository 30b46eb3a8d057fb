"""What it is worth to know which worker has a key warm."""
