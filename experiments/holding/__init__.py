"""What it is worth that requests wait at the balancer until a worker has room."""
