"""The admin HTTP interface: what an SRE looks at and drains workers by, bounded in what strangers could ask of it."""

from balancer.server.admin.pages import Admin
from balancer.server.page.page_data import AdminSources

__all__ = ["Admin", "AdminSources"]
