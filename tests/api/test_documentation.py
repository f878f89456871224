"""Every example of the README and the documentation works as written, or is listed among those that do not run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.config import CHECKOUT, SEED_MEASUREMENTS, Settings
from tests.conftest import new_database
from tests.documentation.examples import commands, examples
from tests.documentation.given import FILES, GIVEN, NOT_RUN, OTHERWISE, SENT, begins
from tests.documentation.page import WRITE, Page
from tests.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# What other pages store would change the answers that these show.
FIRST = ("docs/how-to/plan-and-schedule.md", "README.md", "docs/tutorial/first-prediction.md")
EXAMPLES = dict(sorted(examples().items(), key=lambda page: page[0] not in FIRST))


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """Those of an installation: with the measurements that ship, which answers depend on."""
    return dataclasses.replace(settings, seed_measurements_dir=SEED_MEASUREMENTS)


def test_the_readme_has_three_requests() -> None:
    assert sum(one.language == "bash" for one in EXAMPLES["README.md"]) == 3


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_work_as_written(service: Service, postgres_url: str, tmp_path: Path, page: str) -> None:
    if page in GIVEN:
        GIVEN[page](tmp_path, service.settings)
    with new_database(postgres_url) as empty:
        reader = Page(tmp_path, service, {"URL_OF_AN_EMPTY_DATABASE": empty, "KEY": "gpucast_of_nobody"})
        reader.write_files(EXAMPLES[page])
        for example in EXAMPLES[page]:
            if not begins(example.text) and not begins(example.text, FILES):
                reader.carry_out(example)
    if os.environ.get(WRITE):
        path = CHECKOUT / page
        text = path.read_text("utf-8")
        for shown, today in reader.stale.items():
            text = text.replace(shown, today)
        path.write_text(text, "utf-8")
    else:
        assert not reader.stale, "figures have moved: `python -m tests.documentation` writes them"


def test_nothing_is_listed_that_no_page_has() -> None:
    blocks = [one for found in EXAMPLES.values() for one in found]
    texts = [one.text for one in blocks]
    texts += [command.text for one in blocks if one.language == "console" for command in commands(one)]
    assert [begin for table in (NOT_RUN, FILES, SENT) for begin in table if not any(map(begin_of(begin), texts))] == []
    assert [written for written in OTHERWISE if not any(written in text for text in texts)] == []


def begin_of(begin: str) -> Callable[[str], bool]:
    return lambda text: text.startswith(begin)
