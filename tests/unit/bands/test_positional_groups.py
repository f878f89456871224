"""Interval groups as version 0.1.0 numbered them."""

import numpy as np
import pytest

from app.bands.conformal import Intervals
from app.bands.positional import from_positional_groups_of_0_1_0, group_name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "exact"),
        (5, "none"),
        (39, "attention/bf16/seen"),
        (122, "bmm/fp32/sibling"),
        (1367, "network/fp32/seen"),
        (1565, "attention_decode/w4a8_mxfp4_mxfp8/untrained"),
    ],
)
def test_old_group_numbers_keep_their_groups(code: int, name: str) -> None:
    assert group_name(code) == name


def test_unknown_group_numbers_have_no_group() -> None:
    with pytest.raises(IndexError):
        group_name(1566)


def test_old_states_read_as_new_ones() -> None:
    residuals = np.linspace(-0.3, 0.4, 21)
    old = {"residuals": {1367: residuals}, "units": {1367: 21}, "gpus": {1367: 5}}
    new = {
        "residuals": {"network/fp32/seen": residuals},
        "units": {"network/fp32/seen": 21},
        "gpus": {"network/fp32/seen": 5},
    }
    read = Intervals.from_state(from_positional_groups_of_0_1_0(old))
    np.testing.assert_array_equal(read.log_offsets(0.8), Intervals.from_state(new).log_offsets(0.8))
    assert read.state() == new
