"""Head of a configuration, by the class name in `architectures`."""

from __future__ import annotations

from collections.abc import Mapping

from app.graphs.importers.families.config_fields import Fields


def head_kind(fields: Fields, known: Mapping[str, str], default: str) -> str:
    """Return the kind of head of the first entry of `architectures`, or `default` if the field is absent.

    `known` maps suffixes of class names to kinds.
    """
    given = fields.config.get("architectures")
    if given is None:
        return default
    if not isinstance(given, list) or not given or not isinstance(given[0], str):
        fields.refuse("architectures", "must be a list with one class name")
    endings = [ending for ending in known if given[0].endswith(ending)]
    if not endings:
        fields.refuse("architectures", f"must end in one of {', '.join(known)}; absent: {default}")
    return known[max(endings, key=len)]


CAUSAL = {
    "ForCausalLM": "words",
    "LMHeadModel": "words",
    "ForConditionalGeneration": "words",
    "ForSequenceClassification": "score",
    "ForTokenClassification": "token labels",
    "ForQuestionAnswering": "token labels",
    "Model": "none",
}


def labels(fields: Fields) -> int:
    """Return the number of labels: `num_labels`, else the entries of `id2label`, else 2, as in Hugging Face."""
    named = fields.config.get("id2label")
    if named is not None and not isinstance(named, Mapping):
        fields.refuse("id2label", "must be an object: label by number")
    return fields.size("num_labels", default=len(named) if named else 2)
