"""Numbers in the code: chosen and fitted ones are coefficients, so a file has no more of others than the list allows.

`python -m tests.unit.test_float_constants` writes the list anew, for what is not fitted: sizes, units and rules.
"""

import ast
import json
from pathlib import Path

from app.config import CHECKOUT

ALLOWED = Path(__file__).with_name("float_constants.json")
# Numbers that are arithmetic: halves, powers, and factors between units.
PLAIN = {0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 10.0, 60.0, 100.0, 1e3, 1024.0, 3600.0, 1e6, 1e9, 1e-3, 1e-6, 1e-9}


def constants() -> dict[str, int]:
    """How many number constants with a decimal point each file of `app` and `measure` has, but PLAIN ones."""
    counts = {}
    for path in sorted(path for top in ("app", "measure") for path in (CHECKOUT / top).rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        values = (node.value for node in nodes if isinstance(node, ast.Constant))
        count = sum(isinstance(value, float) and value not in PLAIN for value in values)
        if count:
            counts[path.relative_to(CHECKOUT).as_posix()] = count
    return counts


def test_no_file_has_more_number_constants_than_allowed() -> None:
    allowed = json.loads(ALLOWED.read_bytes())
    more = {place: count for place, count in constants().items() if count > allowed.get(place, 0)}
    assert not more, f"move fitted and chosen constants to seed_data/coefficients: {more}"


if __name__ == "__main__":
    ALLOWED.write_text(json.dumps(constants(), indent=1) + "\n", "utf-8")
