"""`gpucast keys` on a real database, as a process."""

from __future__ import annotations

import os
import subprocess

import pytest

from app.config import Settings
from tests.forked import run_command

pytestmark = pytest.mark.slow


def _keys(settings: Settings, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command("keys", *words, env=os.environ | settings.environment())


def test_a_key_is_made_rotated_and_revoked_and_the_events_say_so(settings: Settings) -> None:
    first = _keys(settings, "create", "scheduler", "--role", "predict", "--days", "90")
    second = _keys(settings, "rotate", "1", "--grace-hours", "0")
    assert (
        first.stdout.startswith("gpucast_") and second.stdout.startswith("gpucast_") and first.stdout != second.stdout
    )
    old, new = _keys(settings, "list").stdout.splitlines()
    assert " expired " in old and " until " in new and old.endswith("scheduler") and new.endswith("scheduler")
    again = _keys(settings, "rotate", "1")
    assert again.returncode == 1 and "No key that is in use has the id 1." in again.stderr
    assert _keys(settings, "revoke", "2").stdout == "Revoked 2.\n"
    events = [line.split()[2:] for line in _keys(settings, "events").stdout.splitlines()]
    told = [(event[1], event[2]) for event in events]
    assert told == [("2", "revoked"), ("2", "created"), ("1", "rotated"), ("1", "created")]
    assert all(event[3:] == ["by", "command", "line"] for event in events)
