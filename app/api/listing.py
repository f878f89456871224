"""Shared parameters of listings: filter texts, ids, page length."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import Path
from pydantic import Field

# Control characters are invisible in logs, and PostgreSQL stores no NUL.
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=200, pattern="^[^\\x00-\\x1f\\x7f]+$")]
MOST_ID = 2**63 - 1  # of PostgreSQL's bigint
Id: TypeAlias = Annotated[int, Field(ge=1, le=MOST_ID)]
SavedId: TypeAlias = Annotated[Id, Path(description="Identifier of the saved answer")]
KeyId: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1, description="Identifier of the key")]  # in 32 bits
Limit: TypeAlias = Annotated[int, Field(ge=1, le=1000, description="Most entries of a page")]
