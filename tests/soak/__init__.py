"""A million requests through a whole deployment while its parts die, hang and change: `make soak`."""
