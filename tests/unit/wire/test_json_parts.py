"""JSON that is decoded in parts gives what it gives as a whole, or the same refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire import json_text
from app.wire.json_text import decode_in_parts, list_length

VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(alphabet='ab"\\[]{},:\u00e9', max_size=12),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=6),
    max_leaves=60,
)


@pytest.fixture(autouse=True, scope="module")
def short_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "PART_BYTES", 8)
        decode_in_parts(b"[1, 2, 3, 4]")  # compiled
        yield


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_parts_give_the_whole(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert decode_in_parts(text) == decode_in_parts(b" \r\n" + text + b"\t ") == value


@given(VALUES, st.integers(0, 200), st.sampled_from([b"", b",", b"]", b"}", b'"', b"\\", b"[", b" 1 "]))
def test_damaged_json_is_refused_as_a_whole_is(value: Any, at: int, damage: bytes) -> None:
    text = json.dumps(value).encode()
    text = text[:at] + damage + text[at + 1 :]
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decode_in_parts(text)
    else:
        assert decode_in_parts(text) == whole


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b" [1, 2,3]", 3),
        (b'[{"a": [1, 2], "b": {"c": 1, "d": 2}}, [1, 2, [3, 4]]]', 2),
        (rb'["a,b", "\",", "\\", "]"]', 4),
        (b"[]", 1),
        (b'{"a": 1, "b": 2}', 0),
        (b"", 0),
    ],
)
def test_values_of_a_list_are_counted(text: bytes, values: int) -> None:
    assert list_length(text) == values
