"""`gpucast trace`: writes a PyTorch model as the project's JSON graph.

Only this command imports PyTorch, from the extra `torch`; the service does not need it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import BadInput

if TYPE_CHECKING:
    from app.networks.importers.aten import Record

_NO_TORCH = "gpucast trace needs PyTorch: install the extra `torch` (pip install 'gpucast[torch]')."


def command(
    factory: Annotated[
        str,
        typer.Argument(
            help="Function that returns a torch.nn.Module and a tuple of example inputs, as module:function."
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write (default: standard output).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the network (default: its class).")] = None,
) -> None:
    """Write the JSON graph of a PyTorch model, for POST /graphs or `gpucast predict`."""
    import msgspec

    from app.networks.importers.aten import graph
    from app.services.graphs.graph_store import read_graph

    module, _, function = factory.partition(":")
    if not function:
        raise BadInput(f"{factory}: send module:function, like my_models:resnet.")
    try:
        torch: Any = import_module("torch")
    except ModuleNotFoundError:
        print(f"gpucast: {_NO_TORCH}", file=sys.stderr)
        raise typer.Exit(2) from None
    model, inputs = _made(module, function)
    try:
        form = graph(name or type(model).__name__, _records(torch, model, inputs))
    except ValueError as error:
        raise BadInput(f"{factory} cannot be traced: {error}") from error
    text = msgspec.json.encode(form)
    read_graph(text, "application/json")
    if out is None:
        print(text.decode())
    else:
        out.write_bytes(text)


def _made(module: str, function: str) -> tuple[Any, tuple[Any, ...]]:
    factory = f"{module}:{function}"
    sys.path.insert(0, "")
    try:
        model, inputs = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"{factory} cannot be called: {error}") from error
    except (TypeError, ValueError) as error:
        raise BadInput(f"{factory} must return a model and a tuple of its inputs: {error}") from error
    return model.eval(), tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)


def _records(torch: Any, model: Any, inputs: tuple[Any, ...]) -> list[Record]:
    """By torch.export; where it refuses, by tracing one run with torch.fx."""
    try:
        program = torch.export.export(model, inputs)
    except Exception as error:
        print(f"gpucast: torch.export refuses ({str(error).splitlines()[0][:200]}); torch.fx traces", file=sys.stderr)
        try:
            return _traced(torch, model, inputs)
        except Exception as second:
            raise ValueError(f"torch.fx refuses too: {str(second).splitlines()[0][:300]}") from second
    return records_of(program)


def records_of(program: Any) -> list[Record]:
    """Return the ATen calls of an exported program."""
    from app.networks.importers.aten import BUFFER, INPUT, PARAMETER

    signature = program.graph_signature
    kinds = dict.fromkeys(signature.inputs_to_parameters, PARAMETER) | dict.fromkeys(
        (*signature.inputs_to_buffers, *signature.inputs_to_lifted_tensor_constants), BUFFER
    )
    return [_record(node, kinds.get(node.name, INPUT)) for node in program.graph.nodes if node.op != "output"]


def _traced(torch: Any, model: Any, inputs: tuple[Any, ...]) -> list[Record]:
    """ATen calls of one run, with parameters as inputs."""
    from app.networks.importers.aten import BUFFER, INPUT, PARAMETER

    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    learned = {name for name, _ in model.named_parameters()}

    def run(held: dict[str, Any], *given: Any) -> Any:
        return torch.func.functional_call(model, held, given)

    make_fx = import_module("torch.fx.experimental.proxy_tensor").make_fx
    with torch.no_grad():
        traced = make_fx(run, tracing_mode="fake")(weights, *inputs)
    kinds = iter([PARAMETER if name in learned else BUFFER for name in weights])
    return [
        _record(node, next(kinds, INPUT) if node.op == "placeholder" else BUFFER)
        for node in traced.graph.nodes
        if node.op != "output"
    ]


def _record(node: Any, kind: str) -> Record:
    """One node of PyTorch's graph in plain values; `kind` is what it is where it comes from outside."""
    from app.networks.importers.aten import GETITEM, Record

    value = node.meta.get("val")
    tensors = value if isinstance(value, list | tuple) else [value]
    outputs = [(list(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors if hasattr(t, "shape")]
    if node.op != "call_function":
        return Record(node.name, kind, (), {}, outputs)
    target = GETITEM if getattr(node.target, "__name__", "") == "getitem" else str(node.target)
    return Record(
        node.name, target, _plain(node.args), {key: _plain(item) for key, item in node.kwargs.items()}, outputs
    )


def _plain(argument: Any) -> Any:
    """Numbers, words, names of nodes, and lists of these."""
    from app.networks.importers.aten import Ref

    if isinstance(argument, list | tuple):
        return [_plain(item) for item in argument]
    if isinstance(argument, bool | int | float | str) or argument is None:
        return argument
    return Ref(argument.name) if hasattr(argument, "op") and hasattr(argument, "name") else str(argument)
