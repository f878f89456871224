"""What an operator is: one file per family, registered in OPS. Looks at no GPU."""

from app.ops import kernel
from app.ops.base import columns
from app.ops.elementwise import ELEMENTWISE_OPS
from app.ops.gemm import GEMM_OPS
from app.ops.memory import MEMORY_OPS

OPS = (kernel.OP, *GEMM_OPS, *ELEMENTWISE_OPS, *MEMORY_OPS)
OP_CODE = {op.name: code for code, op in enumerate(OPS)}
# Columns of a table that mixes deep-learning operators: NaN where a family lacks one.
MIXED_FIELDS = columns(dim for op in OPS[1:] for dim in op.dims)
