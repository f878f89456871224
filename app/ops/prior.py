"""Prior efficiencies and times of an operator's kernels, for GPUs without measurements of it."""

from __future__ import annotations

from typing import NamedTuple, Self

from app.coefficients import room


class Prior(NamedTuple):
    """Efficiencies and times of an operator, the same on every GPU.

    Set by hand while looking at NeuSight's and aiconfigurator's published rows, all GPUs together, so errors of the
    untrained predictor on those rows are in-sample (docs/reference/results.md); no GPU has its own.

    compute   share of the sustained rate that its kernels attain on full tiles
    memory    share of the sustained bandwidth
    host_s    shortest time of an operator that PyTorch launches by itself, seconds
    device_s  time of an operator of no work in a CUDA graph, seconds
    width     half-width in log space of an interval that holds 80 %; equal in an interval group (docs/explanation/
              notebook.md)
    tensor    shares of `compute` that are left where products of 16 bits run on tensor units: before Ampere; on Ampere
              and Ada, and there of operands that lie as kernels take them (`Op.relaid` is 0); since Hopper
    lanes_since_hopper  the same of products in FP32, which libraries have no kernels of that are made for Hopper
    """

    compute: float
    memory: float
    host_s: float
    device_s: float
    width: float
    tensor: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    lanes_since_hopper: float = 1.0

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the prior of this name in the coefficients."""
        fields = dict(room("priors")[name].value)
        return cls(**(fields | ({"tensor": tuple(fields["tensor"])} if "tensor" in fields else {})))


# Of whatever only moves bytes. Host time: a guess, no rows are behind it.
STREAMED = Prior.of("streamed")
