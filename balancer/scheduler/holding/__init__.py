"""Requests that wait at the balancer until a worker has room: in which order, for what, and until when."""
