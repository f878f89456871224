"""A stack is named in its file of seed_data/stacks, and nowhere in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from app.config import CHECKOUT
from app.stacks.registry import stacks

# Files that hold a stack's name as a word of another's: libraries of kernels, by names that trained artefacts know, and
# the names of rows in a data set, an instruction of PTX, and series of Prometheus.
ALLOWED = {"app/ops/attention_kernels.py", "app/formats/aiconfigurator.py", "app/formats/ptx.py", "app/cli/watch.py"}


def named(text: str) -> list[str]:
    """Constants of a module, its docstrings and prose aside, that are a stack's name, perhaps with something behind."""
    names = {name for stack in stacks().values() if stack.kind in ("serving", "training") for name in stack.names}
    whole = re.compile(rf"({'|'.join(map(re.escape, sorted(names)))})([-_.:0-9][^ ]*)?", re.IGNORECASE)
    constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str) and whole.fullmatch(value)]


def test_no_code_names_a_stack() -> None:
    files = [path for top in ("app", "measure") for path in (CHECKOUT / top).rglob("*.py")]
    others = [path.relative_to(CHECKOUT) for path in files if CHECKOUT / "app" / "stacks" not in path.parents]
    naming = {str(path): words for path in others if (words := named((CHECKOUT / path).read_text("utf-8")))}
    assert set(naming) <= ALLOWED, naming


def test_names_are_seen_with_versions_but_not_in_prose() -> None:
    assert named("x = ('vllm', 'sglang-0.5', 'vLLM is fast', f'trtllm-{1}')") == ["vllm", "sglang-0.5", "trtllm-"]


def test_every_file_is_its_stacks() -> None:
    assert {Path(path).stem for path in (CHECKOUT / "seed_data" / "stacks").glob("*.json")} == set(stacks())
