"""What an operator looks at: metrics, logs, admin pages, the decision log."""
