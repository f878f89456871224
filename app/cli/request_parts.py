"""Requests on the command line: files of several kinds, a model by its name or file, and NAME=VALUE fields."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from app.config import Settings
from app.errors import BadInput, Malformed

_PAIRS = {
    "--set": "FIELD=VALUE, like batch=8",
    "--measured": "GPU=MS, like nvidia-l4=0.52",
    "--price": "GPU=USD, like nvidia-l4=0.8",
    "--power": "GPU=W, like nvidia-l4=72",
}
_TRUTHS = {"true": True, "false": False}
# Fields of a Hugging Face config.json, one of which every such file has.
_OF_CONFIG = ("model_type", "architectures", "hidden_size", "num_hidden_layers", "text_config")
_MEDIA = "application/octet-stream"


def read_file(file: Path) -> bytes:
    """Return the bytes of a file; - is standard input. Raises BadInput."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error


def read_json(file: Path) -> Any:
    """Return the JSON of a file; - is standard input."""
    from app.wire.decoding import decode_plain

    return decode_plain(read_file(file))


def pair(text: str, option: str) -> tuple[str, str]:
    """Split NAME=VALUE at the last =, since a GPU's name may contain one."""
    name, separator, value = text.rpartition("=") if option == "--measured" else text.partition("=")
    if not separator or not name:
        raise BadInput(f"{option} {text}: {text!r} has no =; send {_PAIRS.get(option, 'NAME=VALUE')}.")
    return name, value


def value_of(text: str) -> Any:
    """Return the text as a number or truth value if it is one, else unchanged."""
    if text in _TRUTHS:
        return _TRUTHS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def put_fields(workload: dict[str, Any], fields: Sequence[str]) -> None:
    """Set every FIELD=VALUE; dots separate the names of nested fields."""
    for item in fields:
        name, value = pair(item, "--set")
        _put(workload, name.split("."), value_of(value))


def _put(holder: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = holder.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadInput(f"--set {'.'.join(path)}: {name} is not an object.")
        holder = inner
    holder[path[-1]] = value


def model_workload(model: str, options: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the workload of kind `model` without options that are None; `fields` are FIELD=VALUE."""
    is_file = model.endswith(".json") or Path(model).is_file()
    network = {"config": read_json(Path(model))} if is_file else {"name": model}
    given = {name: value for name, value in options.items() if value is not None}
    workload: dict[str, Any] = {"kind": "model", **network, **given}
    put_fields(workload, fields)
    return workload


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
    from app.services.graphs.graph_store import Graphs, missing_dims, read_dims, read_graph

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
