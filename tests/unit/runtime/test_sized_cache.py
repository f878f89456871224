"""Caches of what the database has."""

from __future__ import annotations

import pytest

from app.errors import NotFound, Unavailable
from app.runtime import sized_cache
from app.runtime.sized_cache import StoredCache


def raises(error: Exception) -> None:
    raise error


def test_what_is_deleted_elsewhere_is_gone_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    cache: StoredCache[str] = StoredCache(10)
    assert cache.get(1, lambda: ("x", 1), lambda: pytest.fail("just read")) == "x"
    assert cache.get(1, lambda: pytest.fail("held"), lambda: pytest.fail("just read")) == "x"
    monkeypatch.setattr(sized_cache, "CHECK_S", -1.0)
    assert cache.get(1, lambda: pytest.fail("held"), lambda: None) == "x"
    assert cache.get(1, lambda: pytest.fail("held"), lambda: raises(Unavailable("away"))) == "x"
    with pytest.raises(NotFound):
        cache.get(1, lambda: pytest.fail("held"), lambda: raises(NotFound("gone")))
    assert cache.get(1, lambda: ("y", 1), lambda: pytest.fail("just read")) == "y"
    cache.drop(1)
    cache.drop(1)
    assert cache.get(1, lambda: ("z", 1), lambda: None) == "z"
