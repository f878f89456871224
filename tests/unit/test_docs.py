"""The nomenclature names every figure of a GPU, a launch and an operator; files and pages named elsewhere exist."""

from __future__ import annotations

import re
import subprocess

import pytest

from app.config import CHECKOUT
from app.networks.importers.hf import KNOWN_MODEL_TYPES
from app.ops import MIXED_FIELDS, OPS
from app.ops.kernel import FIELDS as KERNEL_FIELDS
from app.ops.reference import fields_table
from app.tables.gpu_fields import FIELDS as GPU_FIELDS
from app.tables.gpus import PIPES

TEXT = (CHECKOUT / "docs" / "reference" / "nomenclature.md").read_text("utf-8")
# The site puts the fields of operators in where the page asks for them (docs/conf.py).
WORDS = set(re.findall(r"\w+", TEXT.replace("<!-- operator fields -->", fields_table(OPS[1:]))))
SHELVES = ("tutorial", "how-to", "reference", "explanation")


@pytest.mark.parametrize("name", sorted({*GPU_FIELDS, *KERNEL_FIELDS, *MIXED_FIELDS, *PIPES}))
def test_every_column_is_explained(name: str) -> None:
    assert name in WORDS


def test_every_model_type_is_listed() -> None:
    page = (CHECKOUT / "docs" / "reference" / "models.md").read_text("utf-8")
    table = page.split("### Model types")[1].split("|---|---|")[1].split("\n\n")[0]
    listed = re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", table)))
    assert sorted(listed) == sorted(KNOWN_MODEL_TYPES)


def test_every_page_that_a_file_names_exists() -> None:
    command = ["git", "grep", "-hoE", r"docs/[a-z/-]+\.md", "--", ":!CHANGELOG.md"]
    named = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout.split()
    assert len(set(named)) > 10 or not (CHECKOUT / ".git").exists()
    assert [page for page in sorted(set(named)) if not (CHECKOUT / page).is_file()] == []


def test_every_file_that_a_page_names_exists() -> None:
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\b(?:app|tests)/[\w/]+\.py\b", page.read_text("utf-8"))}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (CHECKOUT / name).is_file()] == []


def test_every_page_is_on_a_shelf() -> None:
    pages = [path.relative_to(CHECKOUT / "docs") for path in (CHECKOUT / "docs").rglob("*.md")]
    assert {page.parts[0] for page in pages} == {"index.md", *SHELVES}
