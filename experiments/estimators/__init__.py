"""What the estimates of a tree are worth, against those of another tree, on equal requests."""
