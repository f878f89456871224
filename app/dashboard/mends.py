"""Mends of errors: the address of a page with a known value in place of the wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.dashboard.address import Address
from app.dashboard.typed_values import number_of
from app.errors import FieldError, GpucastError, NotFound
from app.predictors import BY_NAME
from app.services.models.network_kinds import network_kind
from app.wire.near_names import near_names

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Mend:
    """What to try instead, in words, and the query string that tries it."""

    label: str
    pairs: Pairs


def mends(address: Address, error: GpucastError) -> list[Mend]:
    """Return what may be meant instead of each wrong value; nothing where no known one is near."""
    near = error.near if isinstance(error, NotFound) else ()
    return [mend for item in error.errors for mend in _mends(address, item, near)]


def _mends(address: Address, item: FieldError, near: Sequence[str]) -> Iterator[Mend]:
    control = address.control_of(item.loc)
    typed = address.typed.get(control) or address.common.get(control, "")
    if item.loc[:1] == ("gpus",):
        yield from (Mend(name, pairs) for name in near if (pairs := _with_gpu(address, item.msg, name)))
    elif near and len(item.loc) == 2 and typed:  # a line of prices or powers
        wrong = str(item.loc[1])
        yield from (Mend(name, _with(address, control, typed.replace(wrong, name))) for name in near)
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


def _with_gpu(address: Address, message: str, gpu: str) -> Pairs:
    """Return the address with this GPU in place of the one that the message quotes; nothing if it quotes none."""
    wrong = next((value for value in (*address.gpus, address.common.get("on", "")) if repr(value) in message), None)
    if not wrong:
        return []
    return [(name, gpu if name in ("gpu", "on") and value == wrong else value) for name, value in address.pairs]
