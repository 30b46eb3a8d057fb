"""Is the simulator like real GPUs: fitted on one client's table, it predicts the table of 8 to 256 clients."""
