"""Heads of decoders."""

from __future__ import annotations

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.heads import CAUSAL, head_kind, labels
from app.graphs.transformers.architecture import Head


def causal_head(fields: Fields, vocabulary: int, *, tied: bool, bias: bool = False, softcap: bool = False) -> Head:
    """Return the head of a decoder; by default that of a causal language model."""
    kind = head_kind(fields, CAUSAL, "words")
    if kind == "words":
        return Head(vocabulary=vocabulary, tied=tied, bias=bias, softcap=softcap)
    if kind == "none":
        return Head()
    return Head(labels=labels(fields), labels_bias=kind == "token labels", of="token")
