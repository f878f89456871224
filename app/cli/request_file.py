"""Requests from files: a request, a workload, a network's config.json, a graph of `gpucast trace`, or ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from app.cli.request_fields import read_file
from app.config import Settings
from app.errors import BadInput, Malformed

# Fields of a Hugging Face config.json, one of which every such file has.
_OF_CONFIG = ("model_type", "architectures", "hidden_size", "num_hidden_layers", "text_config")
_MEDIA = "application/octet-stream"


def request_of_file(file: Path, dims: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that a file is, or is about. Raises BadInput or Malformed.

    A file that is no JSON is a network in ONNX or an archive of torch.export; it is stored, as by POST /graphs. `dims`
    are the sizes of its dimensions.
    """
    from app.wire.decoding import decode_plain

    body = read_file(file)
    if body[:64].lstrip()[:1] not in {b"{", b"["} and file.suffix != ".json":
        return {"workload": {"kind": "graph", "graph_id": _stored(file, body, dims)}}
    try:
        given = decode_plain(body)
    except BadInput as error:
        raise type(error)(f"{file}: {error.detail}", errors=error.errors) from None
    if not isinstance(given, dict):
        raise BadInput("The JSON must be an object: a workload, a request with one, a config.json or a graph.")
    if "workload" in given:
        return given
    if "kind" not in given and "nodes" in given:
        return {"workload": {"kind": "graph", "graph": given}}
    if "kind" not in given and any(name in given for name in _OF_CONFIG):
        return {"workload": {"kind": "model", "config": given}}
    return {"workload": given}


def _stored(file: Path, body: bytes, dims: Mapping[str, Any]) -> str:
    """Store a network in this installation, by its service where that runs, and return its id."""
    import json

    from app.runtime.service_file import answer_of_service
    from app.services.graphs.graph_bodies import read_dims, read_graph
    from app.services.graphs.graph_store import Graphs, missing_dims

    texts = [f"{name}={size}" for name, size in dims.items()]
    sizes = read_dims(texts)
    try:
        source = read_graph(body, _MEDIA)
    except Malformed as error:
        known = "JSON (a request, a config.json, a graph), ONNX and .pt2"
        raise Malformed(f"{file}: {error.detail} Files are read that are {known}.", errors=error.errors) from None
    if missing := missing_dims(source, sizes):
        options = " ".join(f"--set dims.{name}=SIZE" for name in missing)
        raise BadInput(f"{file}: no size of the dimensions {', '.join(missing)}: add {options}")
    settings = Settings.from_env()
    query = urlencode([("dims", text) for text in texts])
    # A file over the service's limit on bodies is read here.
    answer = answer_of_service(settings, f"/graphs?{query}", body, media=_MEDIA)
    if answer is not None:
        return str(json.loads(answer)["graph_id"])
    from app.bootstrap.runtime import open_runtime

    with open_runtime(settings) as runtime:
        return Graphs(runtime.database).add(source, sizes).id
