"""From a topic through the listener to another topic: `balancer ingress`."""
