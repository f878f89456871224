"""Rooms, files and functions keep to the sizes that docs/explanation/architecture.md gives."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from app.config import CHECKOUT

TABLE = CHECKOUT / "docs" / "explanation" / "architecture.md"
ROW = re.compile(r"^\| `((?:app|evaluation|gpucast|measure)/[^`]*)` \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 400, 60


def sources() -> Iterator[tuple[Path, str]]:
    for top in ("app", "evaluation", "gpucast", "measure"):
        for path in sorted((CHECKOUT / top).rglob("*.py")):
            yield path.relative_to(CHECKOUT), path.read_text("utf-8")


def room_of(path: Path) -> str:
    """A package of `app`, its loose files, or the whole of another package."""
    if path.parts[0] != "app":
        return f"{path.parts[0]}/"
    return f"app/{path.parts[1]}/" if len(path.parts) > 2 else "app/*.py"


def test_rooms_have_no_more_files_and_lines_than_the_table_says() -> None:
    files, lines = Counter[str](), Counter[str]()
    for path, text in sources():
        files[room_of(path)] += 1
        lines[room_of(path)] += text.count("\n")
    rows = {room: [int(cell.replace(",", "")) for cell in cells] for room, *cells in ROW.findall(TABLE.read_text())}
    assert rows.keys() == files.keys()
    sizes = {room: (files[room], lines[room]) for room in rows}
    assert not {room: size for room, size in sizes.items() if size[0] > rows[room][0] or size[1] > rows[room][1]}


def test_files_and_functions_are_of_a_readable_size() -> None:
    long = []
    for path, text in sources():
        if text.count("\n") > MOST_LINES_OF_A_FILE:
            long.append(str(path))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION:
                    long.append(f"{path}:{node.lineno} {node.name}")
    assert long == []
