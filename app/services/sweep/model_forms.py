"""The structure of a sweep's network, separated from its sizes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from app.networks.builtin import find_config
from app.networks.convnets import is_convnet
from app.networks.convnets import lower as lower_convnet
from app.networks.formats import has_formats
from app.networks.importers import hf
from app.networks.run import Run
from app.networks.transformers.architecture import Architecture
from app.networks.transformers.batched import split_sizes, with_sizes
from app.networks.transformers.lowering import check, write
from app.services.models.resolve_networks import IMAGE_SIZE, default_image_size
from app.services.sweep.model_columns import to_workload
from app.steps.networks import Network
from app.tables.arrays import Floats
from app.tables.workload import Workload

# Sorts of networks, whose runs are given in different fields.
Sort = Literal["convnet", "tokens", "images"]
SORTS: tuple[Sort, ...] = ("convnet", "tokens", "images")


class Model(NamedTuple):
    """A network split into structure and sizes: networks of one `form` differ only by their sizes.

    key           the key of its Network
    architecture  None for a ConvNet
    side          default image side in pixels of networks for images; NaN for those that take sequences
    has_formats   whether its configuration has formats, which decide where no dtype is given
    """

    form: Hashable
    key: Hashable
    sizes: tuple[int, ...] = ()
    architecture: Architecture | None = None
    side: float = np.nan
    has_formats: bool = False

    @property
    def of_images(self) -> bool:
        """Whether it takes images."""
        return not np.isnan(self.side)

    @property
    def sort(self) -> Sort:
        """Which sort of network it is."""
        if self.architecture is None:
            return "convnet"
        return "images" if self.of_images else "tokens"

    def network(self, sizes: Floats) -> Network:
        """Return networks of this form with `sizes`, [c, ...], as one."""
        if self.architecture is None:
            assert isinstance(self.form, str)
            return Network(self.key, partial(lower_convnet, self.form))
        architecture = with_sizes(self.architecture, sizes)

        def lower(run: Run) -> Workload:
            check(architecture, run)
            return write(architecture, run)

        return Network(self.key, lower)


def to_model(cells: Mapping[str, Any]) -> Model | None:
    """Return the model of a row's cells, or None if there is no such network."""
    workload = to_workload(cells)
    if workload.config is None and is_convnet(workload.name or ""):
        name = str(workload.name)
        return Model(name, ("convnet", name), side=float(default_image_size(name)))
    config = find_config(workload.name) if workload.name is not None else workload.config
    if config is None:
        return None
    form, sizes, architecture = split_sizes(hf.read(config))
    side = IMAGE_SIZE if "patch_size" in config else np.nan
    key = ("config", msgspec.json.encode(config, order="sorted"))
    return Model(form, key, sizes, architecture, side, has_formats(config))
