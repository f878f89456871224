"""What an operator is: one file per family, registered in OPS. Looks at no GPU."""

from app.ops import kernel
from app.ops.attention import ATTENTION_MIXED, ATTENTION_OPS
from app.ops.attention_module import ATTENTION_MODULE_OPS
from app.ops.base import columns
from app.ops.collective import COLLECTIVE_OPS, EXPERT_ALL_TO_ALL_OPS
from app.ops.conv import CONV_OPS
from app.ops.elementwise import ELEMENTWISE_OPS
from app.ops.gemm import GEMM_OPS
from app.ops.glue import GLUE_OPS, QUANTIZE_OPS
from app.ops.hyper_connections import HYPER_CONNECTION_OPS
from app.ops.linear_attention import LINEAR_ATTENTION_OPS
from app.ops.memory import EMBEDDING_OPS, MEMORY_OPS
from app.ops.moe import MOE_OPS, MOE_WIDE_OPS
from app.ops.network import NETWORK_OPS
from app.ops.norm import NORM_OPS
from app.ops.pool import POOL_OPS
from app.ops.recurrent import RECURRENT_OPS

OPS = (
    kernel.OP,
    *GEMM_OPS,
    *CONV_OPS,
    *NORM_OPS,
    *POOL_OPS,
    *ELEMENTWISE_OPS,
    *EMBEDDING_OPS,
    *RECURRENT_OPS,
    *ATTENTION_OPS,
    *MOE_OPS,
    *COLLECTIVE_OPS,
    *MEMORY_OPS,
    *GLUE_OPS,
    ATTENTION_MIXED,
    *LINEAR_ATTENTION_OPS,
    *ATTENTION_MODULE_OPS,
    *HYPER_CONNECTION_OPS,
    *QUANTIZE_OPS,
    *EXPERT_ALL_TO_ALL_OPS,
    *MOE_WIDE_OPS,
    *NETWORK_OPS,
)
OP_CODE = {op.name: code for code, op in enumerate(OPS)}
# Columns of a table that mixes deep-learning operators: NaN where a family lacks one.
MIXED_FIELDS = columns(dim for op in OPS[1:] for dim in op.dims)
