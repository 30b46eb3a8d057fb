"""Requests of OpenAI's API, which the proxy forwards as they are; streams go on where a worker dies."""
