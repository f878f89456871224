"""The pages of the dashboard. They show the API's answers, from the same services."""

from __future__ import annotations

from app.dashboard.routes import accuracy, catalogue, compare, detail, plan, serving, shell
from app.dashboard.routes.shell import missing

__all__ = ["ROUTERS", "missing"]

ROUTERS = (plan.router, compare.router, detail.router, serving.router, accuracy.router, catalogue.router, shell.router)
