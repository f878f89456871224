"""Syntax trees on many threads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.runtime.syntax import syntax_tree


class Finalized:
    """Garbage whose end lets other threads run, in the middle of whatever a collection interrupts."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sum(range(1000))


@pytest.fixture
def often_interrupted() -> Iterator[None]:
    switch_s, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20, 2, 2)
    yield
    sys.setswitchinterval(switch_s)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("often_interrupted")
def test_trees_are_built_on_several_threads() -> None:
    """CPython raises a SystemError for one of two trees that are built at once (its issue 106905)."""

    def build(formula: str) -> None:
        for _ in range(100):
            Finalized()
            syntax_tree(formula, "eval")

    with ThreadPoolExecutor() as threads:
        list(threads.map(build, ["+".join(["(1 + a[2])"] * 60), "a + b"] * 2))
