"""The ways in: each speaks one protocol and asks the one router (see README.md)."""
