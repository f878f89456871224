"""Kernels that add the bias of convolutions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from app.networks.convnets import lower
from app.networks.run import Run
from app.ops import OP_CODE
from app.steps.networks import Network, all_rows
from app.tables.ops import OUTPUT_BYTES
from app.tables.workload import FORWARD, Workload


def rows_of(name: str, run: Run) -> Workload:
    return all_rows(Network(("convnet", name), partial(lower, name)), run)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_each_convolution_with_a_bias_is_followed_by_an_addition(mode: str) -> None:
    """The eight of VGG-11, each over its whole output; backward passes the gradient on as it is."""
    w = rows_of("vgg11", Run(mode=mode, batch=8, dtype="bf16"))  # type: ignore[arg-type]
    added = np.flatnonzero(w.ops.kind == OP_CODE["add_scalar"])
    assert len(added) == 8
    assert np.all(w.ops.kind[added - 1] == OP_CODE["conv2d"])
    assert np.all(w.phase[added] == FORWARD)
    elements = w.output_bytes[added - 1] / OUTPUT_BYTES[w.ops.dtype[added]]
    np.testing.assert_array_equal(w.ops.column("h")[added], elements)
    assert np.all(w.parameters[added] == 0.0)


@pytest.mark.parametrize(("name", "fused"), [("resnet18", False), ("vgg11", True)])
def test_no_bias_and_torch_compile_need_none(name: str, fused: bool) -> None:
    w = rows_of(name, Run(mode="inference", batch=8, fused=fused))
    assert not (w.ops.kind == OP_CODE["add_scalar"]).any()
