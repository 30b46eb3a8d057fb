"""The admin HTTP interface: what an SRE looks at and drains workers by, bounded in what strangers could ask of it."""
