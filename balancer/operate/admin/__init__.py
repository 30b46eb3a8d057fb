"""The admin HTTP interface: what an SRE looks at. Read-only, and bounded in all that a stranger could ask of it."""

from balancer.operate.admin.pages import Admin

__all__ = ["Admin"]
