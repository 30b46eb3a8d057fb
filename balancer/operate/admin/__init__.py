"""The admin HTTP interface: what an SRE looks at, and drains workers by. Bounded in all that a stranger could ask of it."""

from balancer.operate.admin.pages import Admin

__all__ = ["Admin"]
