"""Roles of API keys, apart from the keys, whose module loads SQLAlchemy: commands show their help without that."""

from enum import IntEnum
from typing import Literal


class Role(IntEnum):
    """Permissions of a key; each role includes those before it."""

    READ = 1
    PREDICT = 2
    CONTRIBUTE = 3
    ADMIN = 4


RoleName = Literal["read", "predict", "contribute", "admin"]
