"""A fleet and its requests as a decision log shows them."""
