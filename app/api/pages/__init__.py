"""The pages of the dashboard. They show the API's answers, from the same services."""

from __future__ import annotations

from app.api.pages import accuracy, compare, detail, gpus, interface, measured, scaling, serving
from app.api.pages.shell import missing

__all__ = ["ROUTERS", "missing"]

ROUTERS = (
    compare.router,
    detail.router,
    scaling.router,
    serving.router,
    accuracy.router,
    measured.router,
    gpus.router,
    interface.router,
)
