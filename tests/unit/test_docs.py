"""The nomenclature names every figure of a GPU, of a launch and of an operator."""

from __future__ import annotations

import re

import pytest

from app.config import CHECKOUT
from app.ops import MIXED_FIELDS
from app.ops.kernel import FIELDS as KERNEL_FIELDS
from app.tables.fields import FIELDS as GPU_FIELDS
from app.tables.gpus import PIPES

TEXT = (CHECKOUT / "docs" / "nomenclature.md").read_text("utf-8")
WORDS = set(re.findall(r"\w+", TEXT))


@pytest.mark.parametrize("name", sorted({*GPU_FIELDS, *KERNEL_FIELDS, *MIXED_FIELDS, *PIPES}))
def test_every_column_is_explained(name: str) -> None:
    assert name in WORDS
