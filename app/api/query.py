"""What a query string may say: a parameter that a route does not have would be a filter that nobody applies."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Cookie, Header, Path
from fastapi.routing import APIRoute

from app.errors import BadInput, FieldError


async def refuse_unknown(request: Request) -> None:
    """BadInput that names parameters which the route does not have, or which stand more often than it takes."""
    given = request.query_params
    route = request.scope.get("route")
    if not given or not isinstance(route, APIRoute):
        return
    many = _parameters(route)
    errors = []
    for name in given:
        if name not in many:
            known = f"the parameters are {', '.join(many)}" if many else "there are no parameters here"
            errors.append(FieldError((name,), f"unknown parameter; {known}"))
        elif not many[name] and len(given.getlist(name)) > 1:
            errors.append(FieldError((name,), "stands more than once"))
    if errors:
        raise BadInput(f"{errors[0].loc[0]}: {errors[0].msg}", errors=errors)


def _parameters(route: APIRoute) -> dict[str, bool]:
    """Query parameters of a route, and whether each may stand more than once."""
    elsewhere = (Path, Header, Cookie)  # fields of a model of parameters are of no such class
    fields = (field for field in get_flat_params(route.dependant) if not isinstance(field.field_info, elsewhere))
    return {field.alias: _is_list(field.field_info.annotation) for field in fields}


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(get_origin(part) is list for part in get_args(annotation))
