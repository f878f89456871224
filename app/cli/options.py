"""Options of commands, in groups: fields of a request's struct, or of a dataclass; and the requests that they make.

The facts of a field, which its struct has, say what an option is: its kind, unit, meaning and default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, is_dataclass
from dataclasses import fields as fields_of
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_type_hints

import typer

from app.errors import BadInput

if TYPE_CHECKING:
    from msgspec import Struct

    from app.formats.serving.files import DeploymentOptions
    from app.wire.field_facts import FieldFacts

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the service's JSON answer.")]
Csv: TypeAlias = Annotated[bool, typer.Option("--csv", help="Print CSV, a line per GPU.")]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE.svg|.png", help="Also draw a chart of the figures with their intervals.")
]
DATA_VARIABLE = "GPUCAST_SHARED_DATA"
_DATA = typer.Option(
    envvar=DATA_VARIABLE,
    file_okay=False,
    metavar="DIR",
    help="Folder with the data sets neusight, modern_operators, serving_operators, serving_points, whole_models, "
    "vision_models and cuda_kernels.",
)
Data: TypeAlias = Annotated[Path, _DATA]
DataIfAny: TypeAlias = Annotated[Path | None, _DATA]

# Python's types of options, and what stands for a value that has no unit.
_TYPES: Mapping[str, Any] = {
    "whole": int | None,
    "number": float | None,
    "text": str | None,
    "flag": bool,
    "list": list[str] | None,
    "object": list[str] | None,  # GPU=FIGURE
}
_METAVARS = {"whole": "COUNT", "number": "NUMBER"}
# Option of each field, by its place in a request, of the command that runs: for messages about wrong fields.
OPTIONS_OF_FIELDS: dict[str, str] = {}

# Takes the values of a group from those of all options, by name.
_Take: TypeAlias = Callable[[Mapping[str, Any]], Any]


class RequestOptions:
    """Options that set fields of a request: `names`, and `others` as field="option".

    within    the object of the request that has the fields
    defaults  values in place of the struct's own, where the option is not given
    """

    def __init__(
        self,
        struct: type[Struct],
        *names: str,
        within: str = "",
        defaults: Mapping[str, Any] | None = None,
        **others: str,
    ) -> None:
        from app.wire.field_facts import field_facts  # `gpucast measure`, which has no request, needs no msgspec

        facts = field_facts(struct)
        self._options = {facts[field]: option for field, option in {**{name: name for name in names}, **others}.items()}
        self._defaults = defaults or {}
        for fact, option in self._options.items():
            OPTIONS_OF_FIELDS[within + fact.name] = f"{_flag(option)} {_metavar(fact) or ''}".strip()

    def parameters(self) -> list[Parameter]:
        """Return a parameter per option, for Typer."""
        return [self._parameter(fact, option) for fact, option in self._options.items()]

    def _parameter(self, fact: FieldFacts, option: str) -> Parameter:
        default = self._defaults.get(fact.name, fact.default)
        unnamed = [choice for choice in fact.choices if choice not in fact.meaning]
        choices = f": {', '.join(fact.choices)}" if unnamed else ""
        shown = f" (default: {default})" if fact.kind in {"whole", "number", "text"} and default is not None else ""
        repeated = "; repeat for several" if fact.kind in {"list", "object"} else ""
        names = (_flag(option),) if fact.kind == "flag" else ()
        parser = _whole if fact.kind == "whole" else None
        text = f"{fact.meaning}{choices}{repeated}{shown}."
        declared = typer.Option(*names, metavar=_metavar(fact), parser=parser, help=text)
        unset = False if fact.kind == "flag" else None
        return Parameter(
            option, Parameter.KEYWORD_ONLY, default=unset, annotation=Annotated[_TYPES[fact.kind], declared]
        )

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that the options set, in the form of the request."""
        fields = {fact.name: _value(fact, option, values[option]) for fact, option in self._options.items()}
        return {**self._defaults, **{name: value for name, value in fields.items() if value is not None}}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer: each group among its parameters becomes the options that the group has."""
    takes: dict[str, _Take] = {}
    options: list[Parameter] = []
    for name, item in signature(command, eval_str=True).parameters.items():
        parameters, takes[name] = _expanded(item)
        options += parameters
    shape = Signature([item.replace(kind=Parameter.KEYWORD_ONLY) for item in options])

    def run(**given: Any) -> None:
        bound = shape.bind(**given)
        bound.apply_defaults()
        command(**{name: take(bound.arguments) for name, take in takes.items()})

    run.__doc__ = command.__doc__
    run.__annotations__ = {item.name: item.annotation for item in options}
    run.__signature__ = shape  # type: ignore[attr-defined]  # a function may have one
    return run


def by_gpu(options: list[str] | None, name: str) -> dict[str, object] | None:
    """Return GPU=FIGURE options by GPU; None if there are none."""
    return {gpu: value_of(figure) for gpu, figure in (pair(text, name) for text in options or [])} or None


def _expanded(item: Parameter) -> tuple[list[Parameter], _Take]:
    """Return the options of a parameter, which may be a group of them, and what its value is of theirs."""
    group = next((part for part in get_args(item.annotation)[1:] if isinstance(part, RequestOptions)), None)
    if group is not None:
        return group.parameters(), group.given
    if not is_dataclass(item.annotation):
        return [item], lambda given: given[item.name]
    made: Any = item.annotation
    hints = get_type_hints(made, include_extras=True)
    inner = {
        field.name: _expanded(Parameter(field.name, item.kind, default=_default(field), annotation=hints[field.name]))
        for field in fields_of(made)
    }
    parameters = [parameter for parameters, _ in inner.values() for parameter in parameters]
    return parameters, lambda given: made(**{name: take(given) for name, (_, take) in inner.items()})


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default


def _whole(text: str) -> int:
    """Return the whole number of a text, which may have an exponent: 1e6."""
    try:
        value = float(text)
        if value.is_integer():
            return int(text) if text.lstrip("+-").isdigit() else int(value)
    except ValueError:
        pass
    raise ValueError(f"expected an integer, got {text!r}")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _metavar(fact: FieldFacts) -> str | None:
    """Return what stands for an option's value; None of flags."""
    if fact.kind == "flag":
        return None
    unit = fact.unit.upper() if fact.unit else _METAVARS.get(fact.kind, "NAME")
    return f"GPU={unit}" if fact.kind == "object" else unit


def _value(fact: FieldFacts, option: str, value: Any) -> Any:
    """Return an option's value as the field has it; None if it is not given."""
    if fact.kind == "object":
        return by_gpu(value, _flag(option))
    return value or None if fact.kind in {"list", "flag"} else value


_PAIRS = {
    "--set": "FIELD=VALUE, like batch=8",
    "--measured": "GPU=MS, like nvidia-l4=0.52",
    "--price": "GPU=USD, like nvidia-l4=0.8",
    "--power": "GPU=W, like nvidia-l4=72",
}
_TRUTHS = {"true": True, "false": False}


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


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Options of a served model and its engine."""

    model: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="serving: built-in network, or Hugging Face config.json.")
    ] = None
    tensor: Annotated[
        int | None, typer.Option(min=1, metavar="GPUS", help="serving: GPUs that share the model, tensor-parallel.")
    ] = None
    image: Annotated[str | None, typer.Option(metavar="NAME:TAG", help="serving: container image of the engine.")] = (
        None
    )
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="serving: further field of the workload: kv_dtype=fp8, parallelism.expert=8, length_spread=0.2.",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether any of the options is."""
        return any(getattr(self, item.name) for item in fields_of(self))

    def deployment(self, gpu: str | None, software: str | None, dtype: str | None) -> DeploymentOptions:
        """Return the deployment. Raises BadInput for a --set without =, and a configuration that cannot be read."""
        from app.formats.serving.files import DeploymentOptions

        nested: dict[str, Any] = {}
        put_fields(nested, self.fields or ())
        network: Any = self.model
        if self.model is not None and (self.model.endswith(".json") or Path(self.model).is_file()):
            network = read_json(Path(self.model))
            if not isinstance(network, dict):
                raise BadInput(f"--model {self.model}: a Hugging Face config.json is an object.")
        return DeploymentOptions(gpu, software, network, dtype, self.tensor, self.image, nested)
