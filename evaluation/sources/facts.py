"""Facts of the scorecard's sources, and configurations of their networks, by name (seed_data/scorecard)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from app.config import SEED_DATA
from app.networks.builtin import find_config
from evaluation.study import Case, Goal, Row, Study

FOLDER = SEED_DATA / "scorecard"


def config_of(name: str) -> Mapping[str, Any] | None:
    """Return the configuration of a network by its repository's name; None if it is unknown."""
    return _read("models").get(name) or find_config(name)


def facts_of(source: str) -> Mapping[str, Any]:
    """Return the facts of a source: title, assumptions, goals, our names of what its rows name, and requests."""
    facts: Mapping[str, Any] = _read("sources")[source]
    return facts


def request_of(source: str, row: Row, kind: str = "", **fields: Any) -> dict[str, Any]:
    """Return a request for a row: what all of a kind have, what columns say (whole numbers), and further fields."""
    facts = facts_of(source)
    columns = {name: row[column] for name, column in facts["columns"].items()}
    whole = {name: value if isinstance(value, str | bool) else int(value) for name, value in columns.items()}
    return {**facts["requests"][kind], **whole, **fields}


def study(source: str, cases: Callable[[Sequence[Row]], Iterator[Case]]) -> Study:
    """Return the study of a source, whose rows `cases` maps to requests."""
    facts = facts_of(source)
    goals = tuple(Goal(mode, mode, median) for mode, median in facts["goals"].items())
    return Study(source, facts["title"], tuple(facts["assumptions"]), goals, cases)


@cache
def _read(name: str) -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return content
