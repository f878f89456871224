"""The address of a page as an API request, and the API's errors back at the page's controls with what mends them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.dashboard.forms import (
    KINDS,
    LOADS,
    MOST_TYPED,
    NAMES,
    SERVING,
    SPLIT,
    USERS,
    FormField,
    fields_of,
    filled,
    json_of,
    number_of,
    pairs_of,
    put,
    value_of,
)
from app.errors import BadInput, FieldError, GpucastError, NotFound, TooLarge
from app.predictors import BY_NAME
from app.services.models.network_kinds import network_kind
from app.wire.names import did_you_mean, near_names

Pairs = list[tuple[str, str]]


ALL, INLINE = "all", "inline"
# GPUs of an address: those with a price, typed or stored.
RENTABLE = "rentable"
# Seconds between two requests of a user, where they are not typed.
EVERY_S = "60"
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
    "e2e_ms": "e2e_ms",
    "percentile": "percentile",
    "every_s": "every_s",
    "duty_cycle": "duty_cycle",
    "price_term": "price_term",
    "owned": "owned",
    "usd_per_kwh": "usd_per_kwh",
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
    "ttft_ms": "Time to first token, ms",
    "tpot_ms": "Time per output token, ms",
    "e2e_ms": "Time of a request, ms",
    "every_s": "Seconds between a user's requests",
    "duty_cycle": "Share of the hours that are rented",
    "price_term": "Term of stored and list prices",
    "owned": "GPUs of your own",
    "usd_per_kwh": "US dollars per kWh of electricity",
}
# Parameters of single pages.
_OF_PAGES = ("kind", "format", "chart", "devices", "batches", "strong")
# The longest text that a message repeats.
_SHORT = 60


@dataclass(frozen=True, slots=True)
class Address:
    """Parsed address of a page: a workload as typed, GPUs, and further controls."""

    kind: str
    fields: tuple[FormField, ...]
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
    def pairs(self) -> Pairs:
        """The query string of this address, as pairs."""
        return [("kind", self.kind), *self.typed.items(), *self.shared_pairs]

    @property
    def shared_pairs(self) -> Pairs:
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
    def is_searched(self) -> bool:
        """Whether the split of a served model under a rate is searched: none of it is typed."""
        return self.typed.get("load") != "concurrency" and SPLIT.isdisjoint(self.typed)

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
        if self.kind == SERVING:
            self._check_load(workload)
        return workload

    def _check_load(self, workload: dict[str, Any]) -> None:
        """Refuse unknown kinds of load, and make users a rate; what is no number stays, for the API to refuse."""
        load, every = self.typed["load"], number_of(self.common.get("every_s", EVERY_S))
        if load not in LOADS:
            raise BadInput.at(("workload", "load"), f"must be one of {', '.join(LOADS)}, got {load[:_SHORT]!r}")
        if isinstance(every, str) or every <= 0:
            raise BadInput.at(("every_s",), f"expected seconds over 0, got {str(every)[:_SHORT]!r}")
        users = workload["load"].get("rate_per_s")
        if load == USERS and not isinstance(users, str):
            workload["load"]["rate_per_s"] = users / every

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

    @property
    def owned(self) -> list[str]:
        """The names of the GPUs of one's own, one per line."""
        return [line.strip() for line in self.common.get("owned", "").splitlines() if line.strip()]

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
            text = item.msg.replace(error.route, "") if isinstance(error, NotFound) else item.msg
            message = f"{inside}: {text}" if inside else _with_typed(text, self.text_of(control))
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

    def text_of(self, control: str) -> str:
        """Return what a control of the form has, or an empty string."""
        return self.typed.get(control) or self.common.get(control, "")


def compare_body(address: Address) -> dict[str, Any]:
    """Return the POST /compare request of an address. Raises BadInput that names unreadable controls."""
    common = address.common
    more: dict[str, Any] = {"rank_by": common.get("rank_by", "latency")}
    more |= {name: figures for name in ("prices", "powers") if (figures := address.figures(name))}
    if "powers" in more:
        more["powers_w"] = more.pop("powers")
    if "price_term" in common:
        more["price_term"] = common["price_term"]
    if "owned" in common:
        more["owned"] = address.owned
    if "usd_per_kwh" in common:
        more["usd_per_kwh"] = address.number("usd_per_kwh")
    if "search_parallelism" in common:
        more["search_parallelism"] = True
    if "max_devices" in common:
        more["max_devices"] = address.number("max_devices")
    return address.body(**more)


def plan_body(address: Address) -> dict[str, Any]:
    """Return the POST /plan request of a served model's address. Raises BadInput that names unreadable controls."""
    body = compare_body(address)
    for name in ("rank_by", "search_parallelism"):
        body.pop(name, None)
    goals = ("ttft_ms", "tpot_ms", "e2e_ms", "percentile", "duty_cycle")
    return body | {name: address.number(name) for name in goals if name in address.common}


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


def _with_typed(message: str, typed: str) -> str:
    """Return an error's message with the text that was typed, where that is short and not yet in it."""
    return message if not typed or len(typed) > _SHORT or typed in message else f"{message}, got {typed!r}"


@dataclass(frozen=True, slots=True)
class Mend:
    """What to try instead, in words, and the query string that tries it."""

    label: str
    pairs: Pairs


def mends(address: Address, error: GpucastError) -> list[Mend]:
    """Return what may be meant instead of each wrong value; nothing where no known one is near."""
    return [mend for item in error.errors for mend in _mends(address, item, error)]


def _mends(address: Address, item: FieldError, error: GpucastError) -> Iterator[Mend]:
    control = address.control_of(item.loc)
    typed = address.text_of(control)
    near, name = (error.near, error.name) if isinstance(error, NotFound) else ((), "")
    if item.loc[:1] == ("gpus",):
        yield from (Mend(gpu, pairs) for gpu in near if (pairs := _with_gpu(address, name, gpu)))
    elif near and len(item.loc) == 2 and typed:  # a line of prices or powers
        wrong = str(item.loc[1])
        yield from (Mend(gpu, _with(address, control, typed.replace(wrong, gpu))) for gpu in near)
    else:
        yield from (
            Mend(value or f"without {control.replace('_', ' ')}", _with(address, control, value))
            for value in _values(address, control, typed)
        )


def _values(address: Address, control: str, typed: str) -> Sequence[str]:
    """Return values to try in a control; an empty one leaves it out."""
    kind = network_kind(address.typed.get("name", ""))
    if control == "predictor":
        return near_names(typed, BY_NAME)
    if control == "coverage":
        percent = number_of(typed)
        return [f"{percent / 100:g}"] if not isinstance(percent, str) and 1 < percent < 100 else []
    if control == "mode" and kind is not None and typed not in kind.modes:
        return near_names(typed, kind.modes) or kind.modes
    if kind is not None and typed and control == ("sequence" if kind.images else "image_size"):
        return [""]
    choices = next((field.choices for field in address.fields if field.name == control), ())
    return near_names(typed, choices) if typed and typed not in choices else []


def _with(address: Address, control: str, value: str) -> Pairs:
    if control == "op":  # another operator has other fields
        return [("kind", address.kind), ("op", value), *address.shared_pairs]
    kept = [(name, other) for name, other in address.pairs if name != control]
    return [*kept, (control, value)] if value else kept


def _with_gpu(address: Address, wrong: str, gpu: str) -> Pairs:
    """Return the address with this GPU in place of the wrong one; nothing if the address does not have that."""
    if wrong not in (*address.gpus, address.common.get("on")):
        return []
    return [(name, gpu if name in ("gpu", "on") and value == wrong else value) for name, value in address.pairs]
