"""What is known of each worker, estimated: queues, service times, latencies, tokens. Arrays, and rules for them."""
