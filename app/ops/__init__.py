"""What an operator is: one file per family, registered in OPS. Looks at no GPU."""

from app.ops import kernel

OPS = (kernel.OP,)
OP_CODE = {op.name: code for code, op in enumerate(OPS)}
