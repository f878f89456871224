"""Gates and routers of expert layers."""

from __future__ import annotations

GATES, ROUTERS = ("silu", "gelu", "other", "none"), ("plain", "grouped")
SILU, GELU, OTHER, UNGATED = (float(code) for code in range(len(GATES)))
# Gates that fused kernels lack, but of GELU in NVFP4.
LACKING = (GATES.index("gelu"), GATES.index("other"))
PLAIN, BY_GROUPS = (float(code) for code in range(len(ROUTERS)))
