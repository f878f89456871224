"""Writes the lock files (`python requirements/lock.py`), or checks them without any network (`--check`).

A lock names every package with its version and hashes, and no index: whoever installs chooses where from.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent
CHECKOUT = FOLDER.parent
# Lock file -> the extras of pyproject.toml that it holds beside the service's own dependencies.
LOCKS = {"service.txt": ("build",), "dev.txt": ("build", "dev")}
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
FORBIDDEN = re.compile(
    r"https?://|file:|--index-url|--extra-index-url|--find-links|--trusted-host|(?<!\w)/\w+/", re.IGNORECASE
)


def wanted(extras: tuple[str, ...]) -> list[str]:
    """What pyproject.toml asks for, with these extras."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    listed = list(project["dependencies"])
    for extra in extras:
        listed += project["optional-dependencies"][extra]
    return sorted([*listed, f"python{project['requires-python']}"])


def digest(extras: tuple[str, ...]) -> str:
    """A short name for what pyproject.toml asks for: a lock carries that of the day it was made."""
    return hashlib.sha256(json.dumps(wanted(extras)).encode()).hexdigest()[:16]


def header(extras: tuple[str, ...]) -> str:
    """First line of a lock file."""
    return f"# made by `make lock` from pyproject.toml {digest(extras)}\n"


def write(name: str, extras: tuple[str, ...]) -> None:
    """Resolve for every platform and Python that the project supports, keeping pins that still fit."""
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--no-header"]
    chosen = [word for extra in extras for word in ("--extra", extra)]
    lock = FOLDER / name
    command = ["uv", "pip", "compile", "--quiet", "pyproject.toml", *options, *chosen, "--no-annotate", "-o", str(lock)]
    subprocess.run(command, cwd=CHECKOUT, check=True)
    lock.write_text(header(extras) + lock.read_text())


def problems(name: str, extras: tuple[str, ...]) -> list[str]:
    """What is wrong with a lock file; empty if it matches pyproject.toml, pins, hashes and names no index."""
    text = (FOLDER / name).read_text()
    found = [f"{name}: names {match.group(0)!r}" for match in FORBIDDEN.finditer(text)]
    if not text.startswith(header(extras)):
        found.append(f"{name}: pyproject.toml has changed since; run: make lock")
    pins = {canonicalize_name(package): version for package, version in PIN.findall(text)}
    for line in wanted(extras):
        requirement = Requirement(line)
        pinned = pins.get(canonicalize_name(requirement.name))
        if requirement.name != "python" and (pinned is None or not requirement.specifier.contains(pinned)):
            found.append(f"{name}: {line} is not satisfied, pinned is {pinned}")
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    found += [
        f"{name}: no hash: {entry[:40]!r}" for entry in entries if PIN.match(entry) and "--hash=sha256:" not in entry
    ]
    return found


def main() -> int:
    """Write, or check and say what is wrong."""
    if "--check" not in sys.argv[1:]:
        for name, extras in LOCKS.items():
            write(name, extras)
    found = [problem for name, extras in LOCKS.items() for problem in problems(name, extras)]
    print("\n".join(found) or "lock files match pyproject.toml")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
