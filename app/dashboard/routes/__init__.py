"""The pages of the dashboard. They show the API's answers, from the same services."""

from __future__ import annotations

from app.dashboard.routes import accuracy, catalogue, compare, detail, measured, scaling, serving, sign_in
from app.dashboard.routes.shell import missing

__all__ = ["ROUTERS", "missing"]

ROUTERS = (
    compare.router,
    detail.router,
    scaling.router,
    serving.router,
    accuracy.router,
    measured.router,
    catalogue.router,
    sign_in.router,
)
