"""Fleets of a thousand workers and more, and up to 16 balancers: how many workers should a decision look at?"""
