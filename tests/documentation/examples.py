"""Examples of the documentation: every fenced block of README.md and docs/, and the commands in it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from app.config import CHECKOUT

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# What varies in a printed line, and what it may be instead.
_VARIES = (r"shipped\\-\w+", r"\\\.\\\.\\\.", r"\s+", r"\d(?:[\d,]|\\\.)*(?:e(?:\\[-+])?\d+)?")
_INSTEAD = (r"shipped-\w+", ".*", r"\s*", r"[-+\d.,e]+")


@dataclass(frozen=True, slots=True)
class Example:
    """A fenced block: its page below the checkout, language and text."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.strip()[:80]}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a shell, and what the page prints below it."""

    text: str
    output: str


def examples() -> dict[str, list[Example]]:
    """Return the examples of each page that has any, in their order."""
    found: dict[str, list[Example]] = defaultdict(list)
    for path in PAGES:
        page = str(path.relative_to(CHECKOUT))
        for _, language, text in _FENCE.findall(path.read_text("utf-8")):
            if not language.startswith("{"):  # of the site itself
                found[page].append(Example(page, language, text))
    return dict(found)


def commands(example: Example) -> list[Command]:
    """Return the commands of a block of `bash` (the whole block) or `console` (after each $)."""
    if example.language == "bash":
        return [Command(example.text, "")]
    found = []
    for part in re.split(r"^\$ ", example.text, flags=re.MULTILINE)[1:]:
        ends = re.match(r"(?:.*\\\n)*.*\n", part)  # a line ends with \ where the next one continues it
        assert ends is not None, part
        found.append(Command(ends[0].rstrip("\n"), part[ends.end() :]))
    return found


def named_keys(text: str) -> set[str]:
    """Return the names of the fields in JSON that is shortened by "..."."""
    return set(re.findall(r'"(\w+)":', text))


def pattern(line: str) -> re.Pattern[str]:
    """Return what a printed line matches: figures, versions and the width of gaps vary, and ... stands for anything."""
    text = re.escape(line).replace("\\ ", " ")
    return re.compile(
        re.sub("|".join(f"({found})" for found in _VARIES), lambda hit: _INSTEAD[(hit.lastindex or 1) - 1], text)
    )


def script_of(page: str, start: str) -> str:
    """Return the example of a page that begins so."""
    (found,) = (one.text for one in examples()[page] if one.text.startswith(start))
    return found
