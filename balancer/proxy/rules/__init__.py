"""What is decided of a forwarded request: pure, time and chance as arguments."""
