"""Refuse unknown query parameters, which would silently be ignored."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Cookie, Header, Path
from fastapi.routing import APIRoute

from app.errors import BadInput, FieldError


async def check_parameters(request: Request) -> None:
    """Raise BadInput that names unknown and repeated parameters."""
    parameters = request.query_params
    route = request.scope.get("route")
    if not parameters or not isinstance(route, APIRoute):
        return
    repeatable = _parameters(route)
    errors = []
    for name in parameters:
        if name not in repeatable:
            known = f"the parameters are {', '.join(repeatable)}" if repeatable else "this route has no parameters"
            errors.append(FieldError((name,), f"unknown parameter; {known}"))
        elif not repeatable[name] and len(parameters.getlist(name)) > 1:
            errors.append(FieldError((name,), "appears more than once"))
    if errors:
        raise BadInput(f"{errors[0].loc[0]}: {errors[0].msg}", errors=errors)


def _parameters(route: APIRoute) -> dict[str, bool]:
    """Return the query parameters of a route, and whether each may be repeated."""
    elsewhere = (Path, Header, Cookie)  # fields of a parameter model have none of these classes
    fields = (field for field in get_flat_params(route.dependant) if not isinstance(field.field_info, elsewhere))
    return {field.alias: _is_list(field.field_info.annotation) for field in fields}


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(get_origin(part) is list for part in get_args(annotation))
