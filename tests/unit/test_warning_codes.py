"""Every warning has a code, and the codes are those that the reference page explains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import get_args

from app.config import CHECKOUT
from app.warning_codes import Code

CODES = get_args(Code)


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    for path in (CHECKOUT / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield f"{path.relative_to(CHECKOUT)}:{node.lineno}", node


def test_codes_are_sorted_and_in_snake_case() -> None:
    assert list(CODES) == sorted(set(CODES))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in CODES)


def test_every_code_is_documented_and_used() -> None:
    page = (CHECKOUT / "docs" / "reference" / "warnings.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(CODES)
    used = {first.value for _, call in calls("warning") for first in call.args[:1] if isinstance(first, ast.Constant)}
    assert used == set(CODES)


def test_every_warning_is_made_with_a_code_of_the_table() -> None:
    made = [where for where, call in calls("CodedWarning") if isinstance(call.args[0], ast.Constant)]
    assert made == []  # texts are repeated with the code of another warning, or made by `warning`, which mypy checks
