"""Servers of OpenAI's API that compute nothing: their steps take the times of a real GPU."""
