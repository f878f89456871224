"""Roles of API keys."""

from enum import IntEnum
from typing import Literal


class Role(IntEnum):
    """Permissions of a key; each role includes those before it."""

    READ = 1
    PREDICT = 2
    CONTRIBUTE = 3
    ADMIN = 4


RoleName = Literal["read", "predict", "contribute", "admin"]
