"""Sphinx configuration of the documentation site.

Neither the build nor a reader's browser fetches anything from another host.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from app.ops import OPS
from app.ops.reference import fields_table

_VERSION = re.search(
    r'^__version__ = "(.+)"', (Path(__file__).parents[1] / "app/__init__.py").read_text(), re.MULTILINE
)

project = "gpucast"
author = "the gpucast authors"
version = release = _VERSION[1] if _VERSION else ""
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"gpucast {version}"
html_copy_source = False
html_show_copyright = False
myst_enable_extensions = ["colon_fence", "deflist"]
# Headings down to this level can be linked to.
myst_heading_anchors = 4
nitpicky = True


def _with_operators(app: Any, page: str, source: list[str]) -> None:
    """Put the fields of all operators where the nomenclature asks for them."""
    if page == "reference/nomenclature":
        source[0] = source[0].replace("<!-- operator fields -->", fields_table(OPS[1:]))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _with_operators)
