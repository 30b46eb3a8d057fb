"""The agent beside each Triton: what it reads, and when its worker may stop (see README.md)."""
