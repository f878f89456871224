"""The pages of the dashboard, a file each: they show what the API answers, from the same services."""

from __future__ import annotations

from app.api.pages import accuracy, compare, detail, gpus, interface, measured, scaling

ROUTERS = (
    compare.router,
    detail.router,
    scaling.router,
    accuracy.router,
    measured.router,
    gpus.router,
    interface.router,
)
