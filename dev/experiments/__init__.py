"""What argues: comparisons whose outcome is a page of docs/."""
