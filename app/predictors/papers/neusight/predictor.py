"""NeuSight (Lee, Phanishayee and Mahajan, ASPLOS 2025): tiles, waves and learned utilisation.

Five families, bmm, linear, element-wise, softmax and layer norm, have a network each, per dtype, that gives alpha and
beta of utilisation = alpha - beta / waves from table 3's features (papers.neusight.equations, _network). Any
other operator is taken as bound by memory: bytes / bandwidth.

Differs from the paper: the choice of tiles (papers.neusight.measured_tiles); element-wise tiles cut the flattened
tensor, as PyTorch's kernels do, rather than each row; FLOPs and bytes are those of app.ops; a smaller network, whose
inputs stay within what it learned from. Launches and clocks are no inputs, as in the paper: what the host adds, and a
clock under boost, end up in the utilisation. Collectives, which the paper predicts by their links, are left to the
hardware limit, and so is a family in a dtype that was not learned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from app.bands.groups import S_UNTRAINED
from app.errors import NotTrained
from app.ops import OPS
from app.predictors.base import Capabilities
from app.predictors.papers.known_gpus import LAYOUT
from app.predictors.papers.neusight.equations import ELEMENTWISE, INPUTS, SIZES, Devices, family_of
from app.predictors.papers.neusight.fitting import LEAST_ROWS, learn
from app.predictors.papers.neusight.network import Network
from app.predictors.papers.neusight.operator_model import OperatorModel
from app.predictors.papers.queries import Cell, estimate
from app.predictors.schema import Layout
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable
from app.tables.predictions import Estimate

_FAMILY = {op.name: family_of(op) for op in OPS}


@dataclass(frozen=True, eq=False)
class TileWave:
    """NeuSight as a predictor of operators, from cells by operator and dtype."""

    name: ClassVar[str] = "tilewave"
    can: ClassVar[Capabilities] = Capabilities(("operators",), ("operators",), needs_training=True)

    cells_: Mapping[tuple[str, str], OperatorModel] = field(default_factory=dict)

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Itself with a network for every family and dtype of `runs`, shared by the family's operators in `runs`.

        Operators and dtypes that `runs` lacks stay as they were, and so do the tiles of GPUs that it lacks; the
        network of a cell is learned anew. NotTrained where no family has LEAST_ROWS rows in a dtype.
        """
        learned = learn(runs, gpus, self.cells_)
        if not learned:
            raise NotTrained(
                f"'{self.name}' learns from {LEAST_ROWS} or more rows of bmm, linear, element-wise operators, softmax "
                "or layer_norm in one dtype; there are too few."
            )
        return type(self)({**self.cells_, **learned})

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimates of operator row `i[q]` on GPU row `j[q]`; evidence is not used."""

        def answer(cell: Cell) -> tuple[Floats, Ints] | None:
            if family_of(cell.op) is None:
                return _memory_bound(cell, gpus)
            learned = self._learned(cell)
            return None if learned is None else learned.answer(cell, gpus)

        return estimate(ops, gpus, i, j, answer)

    def _learned(self, cell: Cell) -> OperatorModel | None:
        """The operator's own cell; an element-wise one that was never measured has any of its family's."""
        own = self.cells_.get((cell.op.name, cell.dtype))
        if own is not None or _FAMILY[cell.op.name] != ELEMENTWISE:
            return own
        alike = (one for (op, of), one in self.cells_.items() if of == cell.dtype and _FAMILY[op] == ELEMENTWISE)
        return next(alike, None)

    @staticmethod
    def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Operators and dtypes that a state knows."""
        return [(one["op"], one["dtype"]) for one in state["cells"]]

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a state that knows these operators."""
        axes = {"inputs of networks": INPUTS, "dimensions": SIZES, "figures that tiles go by": Devices._fields}
        families = {f"family of {name}": (_FAMILY[name] or "none",) for name in operators}
        return LAYOUT.joined(Layout(axes | families))

    def state(self) -> dict[str, Any]:
        """Networks once each, and the cells with their network's position."""
        networks = list({id(cell.network): cell.network for cell in self.cells_.values()}.values())
        position = {id(network): k for k, network in enumerate(networks)}
        return {
            "networks": [network.state() for network in networks],
            "cells": [
                {"op": op, "dtype": dtype, "network": position[id(cell.network)], **cell.state()}
                for (op, dtype), cell in self.cells_.items()
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        networks = [Network.from_state(one) for one in state["networks"]]
        cells = state["cells"]
        return cls(
            {(one["op"], one["dtype"]): OperatorModel.from_state(networks[one["network"]], one) for one in cells}
        )


def _memory_bound(cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints] | None:
    """The paper's rule for operators that it does not know, bytes / bandwidth; not for collectives and kernels."""
    if cell.op.link_bytes is not None or cell.op.name == "kernel":
        return None
    bandwidth = gpus.column("memory_bandwidth_bytes_per_s")[cell.gpu]
    return cell.work.bytes / bandwidth, np.full(len(cell.gpu), S_UNTRAINED)
