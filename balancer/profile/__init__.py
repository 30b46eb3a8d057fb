"""`balancer profile`: a Triton's service times by batch size."""
