"""The live page for a person, and the one JSON document that it and `balancer top` show."""
