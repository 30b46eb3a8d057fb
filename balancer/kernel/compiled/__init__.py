"""The kernel compiled: ahead of time to a library for production, at first use for the simulator."""
