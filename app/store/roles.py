"""What API keys may do."""

from enum import IntEnum
from typing import Literal


class Role(IntEnum):
    """What a key may do: each role everything that those before it may."""

    READ = 1
    PREDICT = 2
    CONTRIBUTE = 3
    ADMIN = 4


RoleName = Literal["read", "predict", "contribute", "admin"]
