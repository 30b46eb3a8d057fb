"""Policies for language models against each other, on fleets that are drawn from a written distribution."""
