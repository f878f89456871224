"""Options that describe the deployment of a measured served model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as fields_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.request_fields import put_fields, read_json
from app.errors import BadInput

if TYPE_CHECKING:
    from app.formats.serving.rows import DeploymentOptions


def deployment_options(
    *,
    gpu: str | None,
    software: str | None,
    model: str | None,
    dtype: str | None,
    tensor: int | None,
    image: str | None,
    fields: Sequence[str] | None,
) -> DeploymentOptions:
    """Return the deployment. Raises BadInput for a --set without =, and a configuration that cannot be read."""
    from app.formats.serving.rows import DeploymentOptions

    nested: dict[str, Any] = {}
    put_fields(nested, fields or ())
    network: Any = model
    if model is not None and (model.endswith(".json") or Path(model).is_file()):
        network = read_json(Path(model))
        if not isinstance(network, dict):
            raise BadInput(f"--model {model}: a Hugging Face config.json is an object.")
    return DeploymentOptions(gpu, software, network, dtype, tensor, image, nested)


def given(options: DeploymentOptions) -> dict[str, Any]:
    """Return the options that the user gave, by name, as a file has them."""
    named = {item.name: getattr(options, item.name) for item in fields_of(options)}
    return {name: value for name, value in named.items() if value not in (None, {})}
