"""Files that an operator writes: read safely, checked strictly, followed through any change."""
