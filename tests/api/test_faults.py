"""Faults under load, in short; for longer: `python -m benchmarks.hostile --faults --minutes 20`."""

from __future__ import annotations

import pytest

from tests.faults import run

pytestmark = pytest.mark.slow


def test_acknowledged_uploads_are_stored_once_through_faults_and_nobody_gets_a_500() -> None:
    outcome = run(seed=1, seconds=15.0, quick=True)
    assert outcome.holds, str(outcome)
    assert outcome.faults.total() >= 3 and outcome.statuses["200"] > 30
