"""What a network of a sweep is made of, apart from how large it is."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from app.graphs.convnets import is_convnet
from app.graphs.convnets import lower as lower_convnet
from app.graphs.importers import hf
from app.graphs.run import Run
from app.graphs.transformers.architecture import Architecture
from app.graphs.transformers.batched import split_sizes, with_sizes
from app.graphs.transformers.lowering import write
from app.graphs.transformers.splitting import check
from app.services.models.builtin import find_config
from app.services.models.networks import Network
from app.services.models.resolve_networks import IMAGE_SIZE, default_image_size
from app.services.sweep.model_columns import workload_of
from app.tables.arrays import Floats
from app.tables.workload import Workload


class Model(NamedTuple):
    """A network by what it is made of and how large: those of one `form` differ by their sizes alone.

    key           what a Network has
    architecture  None of a ConvNet
    side          of a network that takes images, their pixels where a row says none; NaN of one that takes sequences
    """

    form: Hashable
    key: Hashable
    sizes: tuple[int, ...] = ()
    architecture: Architecture | None = None
    side: float = np.nan

    @property
    def of_images(self) -> bool:
        """Whether it takes images."""
        return not np.isnan(self.side)

    def network(self, sizes: Floats) -> Network:
        """Networks of this form and of `sizes`, [c, ...], as one."""
        if self.architecture is None:
            assert isinstance(self.form, str)
            return Network(self.key, partial(lower_convnet, self.form))
        architecture = with_sizes(self.architecture, sizes)

        def lower(run: Run) -> Workload:
            check(architecture, run)
            return write(architecture, run)

        return Network(self.key, lower)


def model_of(cells: Mapping[str, Any]) -> Model | None:
    """None where there is no such network."""
    workload = workload_of(cells)
    if workload.config is None and is_convnet(workload.name or ""):
        name = str(workload.name)
        return Model(name, ("convnet", name), side=float(default_image_size(name)))
    config = find_config(workload.name) if workload.name is not None else workload.config
    if config is None:
        return None
    form, sizes, architecture = split_sizes(hf.read(config))
    side = IMAGE_SIZE if "patch_size" in config else np.nan
    return Model(form, ("config", msgspec.json.encode(config, order="sorted")), sizes, architecture, side)
