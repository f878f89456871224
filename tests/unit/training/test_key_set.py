"""The set of keys of training rows."""

import numpy as np

from app.training.operator_start import KeySet


def test_every_key_is_found_with_few_false_positives() -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 40_000, dtype=np.uint64)
    known = KeySet.of(keys[:20_000])
    assert known.holds(keys[:20_000]).all()
    assert known.holds(keys[20_000:]).mean() < 0.04
    assert known.bits.nbytes == 20_000


def test_an_empty_key_set_contains_nothing() -> None:
    assert not KeySet.of(np.empty(0, dtype=np.uint64)).holds(np.arange(100, dtype=np.uint64)).any()
