"""What runs tell: metrics, their uncertainty, references, and the tables and pages that show them (see README.md)."""
