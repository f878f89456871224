"""Sphinx configuration of the documentation site.

Neither the build nor a reader's browser fetches anything from another host.
"""

from __future__ import annotations

import re
from pathlib import Path

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
