"""The front end `native` within this process."""
