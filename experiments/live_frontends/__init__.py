"""`pick` and `native` under the same arrivals, on two live stacks side by side."""
