"""The address of a page as an API request, and the API's errors back at the page's controls."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.dashboard.field import Field
from app.dashboard.fields import KINDS, MOST_TYPED, NAMES, fields_of, filled
from app.dashboard.serving_fields import SERVING
from app.dashboard.typed_values import json_of, number_of, pairs_of, put, value_of
from app.errors import BadInput, FieldError, GpucastError, TooLarge
from app.wire.near_names import did_you_mean

ALL, INLINE = "all", "inline"
# Default GPUs of an address: one of each class that people rent or own today.
DEFAULT_GPUS = (
    "b200", "h200-sxm-141gb", "h100-sxm5-80gb", "a100-sxm4-80gb", "amd-instinct-mi300x", "l40s", "rtx-5090",
    "rtx-4090", "rtx-6000-ada", "a30", "a10", "nvidia-l4",
)  # fmt: skip
# Controls besides those of the workload, and their fields in the API.
COMMON: Mapping[str, str] = {
    "gpu": "gpus",
    "spec": "gpus",
    "predictor": "predictor",
    "coverage": "coverage",
    "rank_by": "rank_by",
    "prices": "prices",
    "powers": "powers_w",
    "search_parallelism": "search_parallelism",
    "max_devices": "max_devices",
    "on": "gpus",
    "ttft_ms": "ttft_ms",
    "tpot_ms": "tpot_ms",
    "percentile": "percentile",
}
COMMON_LABELS: Mapping[str, str] = {
    "gpu": "GPUs",
    "spec": "Specification",
    "predictor": "Predictor",
    "coverage": "Coverage of the interval",
    "rank_by": "Rank by",
    "prices": "US dollars per hour of one GPU",
    "powers": "Watts of one GPU",
    "config": "Its config.json",
    "devices": "Data-parallel devices",
    "batches": "Batch sizes",
    "ttft_ms": "First token, ms",
    "tpot_ms": "Each further token, ms",
}
# Parameters of single pages.
_OF_PAGES = ("kind", "format", "chart", "devices", "batches", "strong")
# The longest text that a message repeats.
_SHORT = 60


@dataclass(frozen=True, slots=True)
class Address:
    """Parsed address of a page: a workload as typed, GPUs, and further controls."""

    kind: str
    fields: tuple[Field, ...]
    typed: Mapping[str, str]
    gpus: tuple[str, ...]
    common: Mapping[str, str]
    unknown: tuple[FieldError, ...] = ()

    @classmethod
    def of(
        cls,
        query: Sequence[tuple[str, str]],
        kinds: Sequence[str] = tuple(KINDS),
        default_gpus: tuple[str, ...] = DEFAULT_GPUS,
    ) -> Address:
        """Return the address of a query string; without a workload an example, without GPUs the defaults.

        `kinds` are those of the page; others count as the first.
        """
        values = {name: value.strip() for name, value in query if value.strip()}
        kind = values.get("kind", "")
        kind = kind if kind in kinds else kinds[0]
        own = {field.name: values[field.name] for field in fields_of(kind, values) if field.name in values}
        typed = filled(kind, own)
        fields = fields_of(kind, typed)
        gpus = tuple(dict.fromkeys(value.strip() for name, value in query if name == "gpu" and value.strip()))
        if not gpus and "spec" not in values:
            gpus = default_gpus
        common = {name: values[name] for name in COMMON if name in values and name != "gpu"}
        return cls(kind, fields, typed, gpus, common, _unknown(values))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The query string of this address, as pairs."""
        return [("kind", self.kind), *self.typed.items(), *(("gpu", gpu) for gpu in self.gpus), *self.common.items()]

    @property
    def shared_pairs(self) -> list[tuple[str, str]]:
        """The pairs besides the workload's, which are valid for other kinds too."""
        return [*(("gpu", gpu) for gpu in self.gpus), *self.common.items()]

    @property
    def title(self) -> str:
        """A short title of the workload."""
        typed = self.typed
        if self.kind == "kernel":
            return f"{typed.get('name', 'a kernel')}, {typed.get('dtype', '')}"
        if self.kind == "operators":
            sizes = [f"{name} {value}" for name, value in typed.items() if name not in ("op", "dtype")]
            return ", ".join([typed.get("op", "an operator"), *sizes, typed.get("dtype", "")])
        name = typed.get("name") or ("a pasted model" if self.kind == "model" else "a graph")
        parts = [name, typed.get("mode", "inference"), f"batch {typed.get('batch', 1)}"]
        parts += [
            f"{typed[size]} {unit}" for size, unit in (("sequence", "tokens"), ("image_size", "px")) if size in typed
        ]
        return ", ".join([*parts, *([typed["dtype"]] if "dtype" in typed else [])])

    @property
    def incomplete(self) -> bool:
        """Whether the workload is incomplete: a graph is still to be uploaded."""
        return self.kind == "graph" and "graph_id" not in self.typed

    @property
    def selected_gpu(self) -> str:
        """The GPU of a single-GPU page: the chosen one, else the first, or INLINE."""
        first = next((gpu for gpu in self.gpus if gpu != ALL), INLINE if "spec" in self.common else DEFAULT_GPUS[0])
        return self.common.get("on") or first

    def has_open_fields(self, complaints: Mapping[str, Any]) -> bool:
        """Return whether a collapsed field has a value or an error."""
        return any(field.more and (field.name in self.typed or field.name in complaints) for field in self.fields)

    def selected_gpus(self) -> list[Any]:
        """Return the GPU of `selected_gpu` in a request's form."""
        if self.selected_gpu == INLINE and "spec" in self.common:
            return [json_of("spec", ("gpus", 0), self.common["spec"])]
        return [self.selected_gpu]

    def workload(self) -> dict[str, Any]:
        """Return the workload of the API request. Raises BadInput for unreadable controls."""
        if sum(len(value) for _, value in self.pairs) > MOST_TYPED:
            raise TooLarge(f"An address has at most {MOST_TYPED:,} characters; send longer workloads to the API.")
        if self.unknown:
            raise BadInput(self.unknown[0].msg, errors=list(self.unknown))
        workload: dict[str, Any] = {"kind": self.kind}
        for field in self.fields:
            if field.path and field.name in self.typed:
                put(workload, field.path, value_of(field, self.typed[field.name]))
        return workload

    def body(self, *, gpus: Sequence[Any] | None = None, **more: Any) -> dict[str, Any]:
        """Return an API request of this workload; `gpus` replaces its GPUs, `more` adds fields."""
        body: dict[str, Any] = {"workload": self.workload(), "gpus": self._gpus() if gpus is None else list(gpus)}
        body |= {"predictor": self.common.get("predictor", "auto")}
        return body | {"coverage": number_of(self.common.get("coverage", "0.8"))} | more

    def _gpus(self) -> list[Any] | str:
        if ALL in self.gpus:
            return ALL
        gpus: list[Any] = list(self.gpus)
        if "spec" in self.common:
            gpus.append(json_of("spec", ("gpus", len(gpus)), self.common["spec"]))
        return gpus

    def number(self, name: str) -> int | float | str:
        """Return the number in a control, or its text if it is not a number."""
        return number_of(self.common[name])

    def figures(self, name: str) -> dict[str, Any]:
        """Return the numbers by GPU in the lines of the control `name`."""
        return pairs_of((COMMON[name],), self.common.get(name, ""))

    def control_of(self, loc: Sequence[str | int]) -> str:
        """Return the control of a path in the request, or an empty string."""
        if loc and loc[0] == "workload":
            path = tuple(loc[1:])
            within = [field for field in self.fields if field.path and path[: len(field.path)] == field.path]
            around = [field for field in self.fields if path and field.path[: len(path)] == path]
            return next((field.name for field in (*within, *around)), "")
        if (
            list(loc[:1]) == ["gpus"]
            and "spec" in self.common
            and (len(loc) > 2 or (len(loc) > 1 and loc[1] == len(self.gpus)))
        ):
            return "spec"
        return next((name for name, place in COMMON.items() if loc and place == loc[0]), "")

    def complaints(self, error: GpucastError) -> dict[str, list[str]]:
        """Return the errors by control, under "" those without one."""
        messages: dict[str, list[str]] = {}
        for item in error.errors:
            control = self.control_of(item.loc)
            inside = ".".join(map(str, self._inside(control, item.loc)))
            message = f"{inside}: {item.msg}" if inside else _complaint(item.msg, self._typed(control))
            messages.setdefault(control, []).append(message)
        return messages or {"": [error.detail]}

    def _inside(self, control: str, loc: Sequence[str | int]) -> Sequence[str | int]:
        """Return the path of an error within the JSON of a control."""
        if control == "spec":
            return loc[2:]
        field = next((field for field in self.fields if field.name == control and field.control == "json"), None)
        return loc[1 + len(field.path) :] if field else ()

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the form's controls by their names."""
        return {**COMMON_LABELS, **{field.name: field.label for field in self.fields}}

    def _typed(self, control: str) -> str:
        """Return what a control of the form has, or an empty string."""
        return self.typed.get(control) or self.common.get(control, "")


def _unknown(values: Mapping[str, str]) -> tuple[FieldError, ...]:
    """Return an error for each parameter that no page has, and for an unknown kind of workload."""
    known = {*NAMES, *COMMON, *_OF_PAGES}
    wrong = [
        FieldError(("address", name), f"an address has no {name[:100]!r}{did_you_mean(name, known)}")
        for name in values
        if name not in known
    ]
    kind = values.get("kind", SERVING)
    if kind not in KINDS and kind != SERVING:
        wrong.append(FieldError(("address", "kind"), f"invalid kind {kind[:100]!r}{did_you_mean(kind, KINDS)}"))
    return tuple(wrong)


def curl(origin: str, path: str, body: Mapping[str, Any]) -> str:
    """Return the curl command of the API request behind a page."""
    written = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl -s {origin}{path} -H 'Content-Type: application/json' -d {written}"


def _complaint(message: str, typed: str) -> str:
    """Return an error's message for people: with the short text that was typed, without routes."""
    message = message.replace("; GET /gpus lists them", "")
    if not typed or len(typed) > _SHORT or typed in message:
        return message
    return f"{message}, got {typed!r}"
