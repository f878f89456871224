"""Requests from files: a request, a workload, a network's config.json, a graph of `gpucast trace`, or ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.cli.request_fields import read_file
from app.config import Settings
from app.errors import BadInput

# Fields of a Hugging Face config.json, one of which every such file has.
_OF_CONFIG = ("model_type", "architectures", "hidden_size", "num_hidden_layers", "text_config")
_MEDIA = "application/octet-stream"


def request_of_file(file: Path) -> dict[str, Any]:
    """Return the request that a file is, or is about. Raises BadInput or Malformed.

    A file that is no JSON is a network in ONNX or an archive of torch.export; it is stored, as by POST /graphs.
    """
    from app.wire.decoding import decode_plain

    body = read_file(file)
    if body[:64].lstrip()[:1] not in {b"{", b"["} and file.suffix != ".json":
        return {"workload": {"kind": "graph", "graph_id": _stored(body)}}
    given = decode_plain(body)
    if not isinstance(given, dict):
        raise BadInput("The JSON must be an object: a workload, a request with one, a config.json or a graph.")
    if "workload" in given:
        return given
    if "kind" not in given and "nodes" in given:
        return {"workload": {"kind": "graph", "graph": given}}
    if "kind" not in given and any(name in given for name in _OF_CONFIG):
        return {"workload": {"kind": "model", "config": given}}
    return {"workload": given}


def _stored(body: bytes) -> str:
    """Store a network in this installation, by its service where that runs, and return its id."""
    import json

    from app.runtime.service_file import answer_of_service

    settings = Settings.from_env()
    answer = answer_of_service(settings, "/graphs", body, media=_MEDIA)
    if answer is not None:
        return str(json.loads(answer)["graph_id"])
    from app.bootstrap.runtime import open_runtime
    from app.services.graphs.graph_bodies import read_graph
    from app.services.graphs.graph_store import Graphs

    source = read_graph(body, _MEDIA)
    with open_runtime(settings) as runtime:
        return Graphs(runtime.database).add(source, {}).id
