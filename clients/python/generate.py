"""Writes gpucast_client.py from the OpenAPI document of the code (`make client`).

Every schema becomes a TypedDict, every operation a method. What the document does not use is not read here: the
document is our own.
"""

from __future__ import annotations

import json
import keyword
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODULE = HERE / "gpucast_client.py"
BASE = HERE / "base.py"

Schema = Mapping[str, Any]

# base.py is how the module begins: all that is the same for every operation.
_IMPORTS = "# ruff: noqa - made from the document\nfrom typing import Literal, NotRequired, TypedDict, cast\n"
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Types:
    """Schemas as type expressions; objects that have no name get one from where they stand."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}

    def add(self, name: str, schema: Schema) -> None:
        """A named schema as a TypedDict."""
        self.classes[name] = ""  # keeps its place before those that stand in it
        required = schema.get("required", ())
        fields = {
            key: (self.of(inner, name + _camel(key)), key in required)
            for key, inner in schema.get("properties", {}).items()
        }
        self.classes[name] = _typed_dict(name, schema.get("description", ""), fields)

    def of(self, schema: Schema, place: str) -> str:
        """The type of a value; `place` names it, should it be an object of its own."""
        if "$ref" in schema:
            return str(schema["$ref"]).rsplit("/", 1)[1]
        if "const" in schema or "enum" in schema:
            return f"Literal[{', '.join(map(repr, schema.get('enum', [schema.get('const')])))}]"
        if "anyOf" in schema:
            return " | ".join(dict.fromkeys(self.of(one, place) for one in schema["anyOf"]))
        kind = schema.get("type")
        if kind == "array":
            return f"list[{self.of(schema.get('items', {}), place)}]"
        if kind == "object":
            return self._object(schema, place)
        return _PLAIN.get(str(kind), "Any")

    def _object(self, schema: Schema, place: str) -> str:
        if schema.get("properties"):
            self.add(place, schema)
            return place
        extra = schema.get("additionalProperties")
        return f"dict[str, {self.of(extra, place) if isinstance(extra, dict) else 'Any'}]"


def module(document: Schema) -> str:
    """The client of a document, as Python source."""
    types = Types()
    for name, schema in document["components"]["schemas"].items():
        types.add(name, schema)
    methods = [
        _method(types, method, path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    imports, client = BASE.read_text("utf-8").split("\n\n\n", 1)
    parts = [f"{imports}\n{_IMPORTS}\n", client, *methods, *types.classes.values()]
    return _formatted("\n".join(parts))


def _typed_dict(name: str, description: str, fields: Mapping[str, tuple[str, bool]]) -> str:
    """A class, or a call where a field's name cannot be an attribute's."""
    told = {key: kind if needed else f"NotRequired[{kind}]" for key, (kind, needed) in fields.items()}
    if any(keyword.iskeyword(key) or not key.isidentifier() for key in fields):
        inner = ", ".join(f'"{key}": {json.dumps(kind)}' for key, kind in told.items())
        return f'{name} = TypedDict("{name}", {{{inner}}})\n'
    lines = [f"{key}: {kind}" for key, kind in told.items()]
    return f"class {name}(TypedDict):\n{_indented([*_docstring(description or name), *lines])}\n"


def _method(types: Types, method: str, path: str, operation: Schema) -> str:
    """One operation: what is in the path and the body by position, the query by name."""
    name = operation["operationId"]
    positional, query = ["self"], []
    for parameter in operation.get("parameters", ()):
        kind = types.of(parameter["schema"], _camel(name) + _camel(parameter["name"]))
        if parameter["in"] == "path":
            positional.append(f"{parameter['name']}: {kind}")
        else:
            query.append((parameter["name"], kind))
    sent = _json_of(operation.get("requestBody", {}))
    if sent is not None:
        positional.append(f"body: {types.of(sent, _camel(name) + 'Body')}")
    keywords = [f"{key}: {kind if 'None' in kind.split(' | ') else f'{kind} | None'} = None" for key, kind in query]
    answer, read = _answer(types, name, operation)
    arguments = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    target = re.sub(r"\{(\w+)\}", r"{_quoted(\1)}", path)
    given = [f'"{method.upper()}"', f'{"f" if "{" in path else ""}"{target}"']
    given += ["body=body"] if sent is not None else []
    given += [f"query={{{', '.join(f'{key!r}: {key}' for key, _ in query)}}}"] if query else []
    send = f"self._send({', '.join(given)})"
    work = [send] if answer == "None" else [f"answer = {send}", f"return {read}"]
    lines = [*_docstring(operation["description"]), *work]
    return f"    def {name}({arguments}) -> {answer}:\n" + textwrap.indent(_indented(lines), "    ")


def _answer(types: Types, name: str, operation: Schema) -> tuple[str, str]:
    """The type of an answer, and how it is read."""
    good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
    schema = _json_of(good)
    if schema is not None:
        kind = types.of(schema, _camel(name) + "Answer")
        return kind, f"cast({json.dumps(kind)}, _json(answer))"
    media = [*good.get("content", {})]
    if not media:
        return "None", "None"
    return ("str", "answer.text") if media[0].startswith("text/") else ("bytes", "answer.content")


def _json_of(part: Schema) -> Schema | None:
    found: Schema | None = part.get("content", {}).get("application/json", {}).get("schema")
    return found


def _docstring(text: str) -> list[str]:
    words = text.replace("\\", "\\\\").replace('"""', "'''").strip()
    lines = [line for paragraph in words.split("\n") for line in textwrap.wrap(paragraph, 100) or [""]]
    if len(lines) == 1:
        return [f'"""{lines[0]}"""']
    return [f'"""{lines[0]}', *lines[1:], '"""']


def _indented(lines: list[str]) -> str:
    return textwrap.indent("\n".join(lines) + "\n", "    ")


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W|_", name))


def _formatted(source: str) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    command = [str(ruff), "format", "--line-length", "120", "--stdin-filename", MODULE.name, "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    from app.config import Settings
    from app.main import create_app

    MODULE.write_text(module(create_app(Settings()).openapi()), "utf-8")
