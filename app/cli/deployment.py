"""Options that describe the deployment of a measured served model."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.request_parts import put_fields, read_json
from app.errors import BadInput

if TYPE_CHECKING:
    from app.formats.serving.rows import DeploymentOptions


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
        from app.formats.serving.rows import DeploymentOptions

        nested: dict[str, Any] = {}
        put_fields(nested, self.fields or ())
        network: Any = self.model
        if self.model is not None and (self.model.endswith(".json") or Path(self.model).is_file()):
            network = read_json(Path(self.model))
            if not isinstance(network, dict):
                raise BadInput(f"--model {self.model}: a Hugging Face config.json is an object.")
        return DeploymentOptions(gpu, software, network, dtype, self.tensor, self.image, nested)


def given(options: DeploymentOptions) -> dict[str, Any]:
    """Return the options that the user gave, by name, as a file has them."""
    named = {item.name: getattr(options, item.name) for item in fields_of(options)}
    return {name: value for name, value in named.items() if value not in (None, {})}
