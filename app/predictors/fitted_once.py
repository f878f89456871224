"""Fit the same rows once. Folds that hold out one GPU fit the models of all others again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")

_KEPT = ContextVar[dict[str, Any] | None]("kept", default=None)


@contextmanager
def fitted_once() -> Iterator[None]:
    """While inside, keep what functions of `once` return."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(fit: Callable[[S], T]) -> Callable[[S], T]:
    """Return `fit`, which inside `fitted_once` answers equal samples with what it returned for the first of them.

    `fit` depends on its samples only, and nobody changes what it returns.
    """

    @wraps(fit)
    def kept_or_fitted(samples: S) -> T:
        kept = _KEPT.get()
        if kept is None:
            return fit(samples)
        from joblib import hash as digest  # noqa: PLC0415  (serving never fits)

        key = f"{fit.__name__} {digest(samples)}"
        if key not in kept:
            kept[key] = fit(samples)
        fitted: T = kept[key]
        return fitted

    return kept_or_fitted
