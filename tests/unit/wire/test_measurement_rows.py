"""Lines of CSV, before they are read."""

import pytest

from app.errors import Malformed
from app.wire import measurement_rows


def test_a_line_that_is_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement_rows, "MAX_LINE_BYTES", 4)
    measurement_rows.check_lines(b"")
    measurement_rows.check_lines(b"1234\n\n12\n1234")
    for body, line in ((b"12345", 1), (b"1\n12345\n1", 2), (b"1\n2\n12345", 3)):
        with pytest.raises(Malformed, match=f"Line {line} of the CSV is over 4 bytes"):
            measurement_rows.check_lines(body)
