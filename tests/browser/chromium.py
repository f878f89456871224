"""Where Chromium is: named, on the path, or installed once where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing of the browser's own may ask anything of the network. Pages of a context share a process.
FLAGS = (
    "--process-per-site",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Another test process may be at it.
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600"
_INSTALL = f"{_APT} update && {_APT} install --no-install-recommends -y"


def executable() -> str:
    """The browser's path; CHROMIUM names one, and root on Debian gets the package."""
    found = os.environ.get("CHROMIUM") or _on_path()
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        done = subprocess.run(
            f"{_INSTALL} chromium fonts-dejavu-core", shell=True, capture_output=True, text=True, check=False
        )
        found = _on_path()
        if found is None:
            pytest.fail(f"Chromium could not be installed by apt-get:\n{done.stderr[-2000:]}", pytrace=False)
    if found is None:
        pytest.fail(
            "The browser tests need Chromium: install it (Debian: apt-get install chromium) or name it in CHROMIUM.",
            pytrace=False,
        )
    return found


def _on_path() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)
