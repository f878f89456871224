"""JSON is rejected only for duplicate names or too deep nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Malformed
from app.wire.json_text import MOST_CONTAINERS, MOST_DEPTH, MOST_NAMES, check_json_text

# Few letters, so that names meet; escapes, quotes and brackets, which a reader of bytes may stumble over.
NAMES = st.text(alphabet='ab"\\/{}[]:,\u00e9\n', max_size=3)


def places(body: bytes) -> list[tuple[str | int, ...]]:
    """Where names stand more than once, as the refusal tells."""
    try:
        check_json_text(body)
    except Malformed as error:
        return [wrong.loc for wrong in error.errors]
    return []


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"gpu": "a", "gpu": "b"}', ("gpu",)),
        (b'{"gpu": "a", "gpu": "a"}', ("gpu",)),
        (b'{"a" : {"b": [1, {"c": 1, "d": {"c": 1}, "c": 2}]}}', ("a", "b", 1, "c")),
        (b'{"gpu": 1, "\\u0067pu": 2}', ("gpu",)),
        (b'{"a/b": 1, "a\\/b": 2}', ("a/b",)),
        (b'{"": 1, "": 2}', ("",)),
        (b'[{"a": 1}, {"a": 1}, {"a": 1, "a": 1}]', (2, "a")),
        (b"{" + b",".join(b'"%d": 0' % k for k in [*range(1000), 7]) + b"}", ("7",)),
    ],
)
def test_a_duplicate_name_is_reported_with_its_path(body: bytes, place: tuple[str | int, ...]) -> None:
    assert places(body) == [place]


def test_all_duplicate_names_are_reported() -> None:
    assert places(b'{"a": 1, "b": 2, "a": 3, "b": {"c": 1, "c": 2}}') == [("a",), ("b",), ("b", "c")]


def test_among_many_names_a_repeated_one_is_found() -> None:
    names = [f"layers.{layer}.experts.{expert}" for layer in range(60) for expert in range(384)]
    valid = {name: {"quant_algo": "NVFP4"} for name in names}
    check_json_text(json.dumps({"config": {"quantized_layers": valid, "gpu": 1}, "gpu": 2}).encode())
    body = json.dumps(valid)
    assert places(f'{body[:-1]}, "{names[7]}": 1}}'.encode()) == [(names[7],)]


def test_names_made_to_collide_are_refused_before_each_is_compared_with_all_others() -> None:
    """One bucket has the names whose hash (FNV-1a) ends in the same bits."""
    names: list[str] = []
    number = 0
    while len(names) < 70:
        hashed, number = 0xCBF29CE484222325, number + 1
        for byte in str(number).encode():
            hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
        if hashed % (MOST_NAMES // 2) == 0:
            names.append(str(number))
    for count, refused in ((60, False), (70, True)):
        body = json.dumps(dict.fromkeys(names[:count], 0)).encode()
        if refused:
            with pytest.raises(Malformed, match="too many names"):
                check_json_text(body)
        else:
            check_json_text(body)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'"', b'"\\', b'{"\\', b'{"a": 1, "a"', b'{"a": 1, "a": }', b"]}", b"\xff"]
)
def test_invalid_json_is_left_to_the_parser(body: bytes) -> None:
    check_json_text(body)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_nesting_depth_is_bounded(opening: bytes, closing: bytes) -> None:
    levels = MOST_DEPTH // len(closing)
    check_json_text(opening * levels + b"0" + closing * levels)
    with pytest.raises(Malformed, match="nested too deeply: at most 100 levels"):
        check_json_text(opening * (levels + 1))


VALUES = st.recursive(
    st.none() | NAMES | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_valid_json_is_accepted(value: Any, ascii_only: bool, indent: int | None) -> None:
    check_json_text(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode())


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), VALUES, st.booleans(), st.data())
def test_no_duplicate_name_is_accepted(value: dict[str, Any], other: Any, ascii_only: bool, data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    again = json.dumps({name: other}, ensure_ascii=ascii_only)
    body = f"[{json.dumps(value)[:-1]}, {again[1:]}]".encode()
    assert places(body) == [(0, name)]


def test_an_object_of_too_many_names_is_refused() -> None:
    names = ",".join(f'"{number}":0' for number in range(MOST_NAMES + 1))
    with pytest.raises(Malformed, match="too many names"):
        check_json_text(b"{" + names.encode() + b"}")


def test_the_number_of_lists_and_objects_is_bounded() -> None:
    check_json_text(b"[" + b"{}," * (MOST_CONTAINERS - 2) + b"[]]")
    with pytest.raises(Malformed, match="too many lists and objects: at most 1,500,000"):
        check_json_text(b"[" + b"{}," * (MOST_CONTAINERS - 1) + b"[]]")
