"""Training of the learned policy by policy gradient (see README.md)."""
