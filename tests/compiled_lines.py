"""Which lines of compiled functions the tests execute: `python -m tests.compiled_lines`.

Coverage cannot see into compiled code, so the tests run with the compiler off. Only those that then take seconds: the
others learn, from rows by the thousand. Fails if a test does, or if less than FLOOR of the lines were executed.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["NUMBA_DISABLE_JIT"] = "1"  # read when numba is imported

import coverage
import pytest

CHECKOUT = Path(__file__).parent.parent
FLOOR = 0.97
# Decorators of app.runtime.compiled.
NAMES = ("compiled", "compiled_per_row")
# Rows, trees and names by the thousand and the million, which compiled code reads in a second, or in steps.
SLOW = (
    "unit/engine/test_exact_hits.py::test_a_million_rows_use_little_memory_and_time",
    "unit/predictors/test_few_rows.py::test_rows_of_one_leaf_are_correlated",
    "unit/predictors/test_shipped_rows.py::test_auto_predicts_a_row_equally_alone_and_in_a_batch[h100-sxm5-80gb-bf16]",
    "unit/predictors/test_shipped_rows.py::test_auto_predicts_a_row_equally_alone_and_in_a_batch[h100-sxm5-80gb-fp32]",
    "unit/predictors/test_shipped_rows.py::test_auto_predicts_a_row_equally_alone_and_in_a_batch[h20-bf16]",
    "unit/predictors/test_trend.py::test_layers_between_and_beyond_the_measured_ones_follow_their_parts",
    "unit/predictors/test_trend.py::test_a_stored_trend_predicts_equally",
    "unit/predictors/test_trend.py::test_operators_that_follow_the_physics_have_no_trend",
    "unit/wire/test_json_text.py::test_an_object_of_too_many_names_is_refused",
    "unit/wire/test_json_text.py::test_among_many_names_a_repeated_one_is_found",
    "unit/wire/test_json_text.py::test_names_made_to_collide_are_refused_before_each_is_compared_with_all_others",
    "unit/wire/test_json_text.py::test_the_number_of_lists_and_objects_is_bounded",
    "unit/wire/test_long_requests.py::test_a_long_graph_in_a_request_leaves_other_threads_time",
    "unit/wire/test_long_requests.py::test_a_long_graph_is_lowered_in_steps",
)
TESTS = (
    "conformance/test_ops.py",
    "conformance/test_predictors.py",
    "unit/steps/test_schedule.py",
    "unit/networks/test_serving.py",
    "unit/steps/test_stages.py",
    "unit/ops",
    "unit/predictors/test_auto.py",
    "unit/predictors/test_convmeter.py",
    "unit/predictors/test_efficiency.py",
    "unit/predictors/test_few_rows.py",
    "unit/predictors/test_flat_trees.py",
    "unit/predictors/test_habitat.py",
    "unit/bands",
    "unit/predictors/test_kernel_names.py",
    "unit/predictors/test_kernel_table.py",
    "unit/predictors/test_known_gpus.py",
    "unit/predictors/test_li.py",
    "unit/predictors/test_occupancy.py",
    "unit/predictors/test_operator_digests.py",
    "unit/predictors/test_ops_time.py",
    "unit/predictors/test_shared_rows.py",
    "unit/predictors/test_shipped_rows.py",
    "unit/predictors/test_collective_interpolation.py",
    "unit/predictors/test_tilewave.py::test_tiles_come_from_the_nearest_measured_product_and_gpu",
    "unit/predictors/test_tree_sums.py",
    "unit/predictors/test_trend.py",
    "unit/predictors/test_trees.py::test_sample_weights_equal_repeated_rows",
    "unit/predictors/test_validity.py",
    "unit/engine/test_exact_hits.py",
    "unit/serving",
    "unit/wire",
)


class LeftOut:
    """The tests that a run left out, as a plugin of pytest."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._names += [item.nodeid.removeprefix("tests/") for item in items]

    def unknown(self) -> list[str]:
        """Return the names in SLOW of which no test was left out: a renamed test would run again, unnoticed."""
        return [slow for slow in SLOW if not any(name.startswith(slow) for name in self._names)]


def main() -> None:
    """Run the tests, and print what they left out."""
    sources = sorted(path for path in (CHECKOUT / "app").rglob("*.py") if "@compiled" in path.read_text())
    watch = coverage.Coverage(data_file=None, include=[str(path) for path in sources])
    watch.start()
    options = ["-q", "-p", "no:cacheprovider", "--disable-warnings", *(f"--deselect=tests/{name}" for name in SLOW)]
    skipped = LeftOut()
    failed = pytest.main([*options, *(str(CHECKOUT / "tests" / name) for name in TESTS)], [skipped])
    watch.stop()
    if unknown := skipped.unknown():
        sys.exit(f"SLOW names tests that are not among TESTS: {', '.join(unknown)}")
    lines = executed = 0
    for path in sources:
        _, statements, _, missing, _ = watch.analysis2(str(path))
        for function in _compiled(path):
            within = range(function.body[0].lineno, (function.end_lineno or 0) + 1)
            left_out = sorted(set(missing) & set(within))
            here = len(set(statements) & set(within))
            lines, executed = lines + here, executed + here - len(left_out)
            if left_out:
                print(f"{path.relative_to(CHECKOUT)}: {function.name}: {', '.join(map(str, left_out))}")
    print(f"{executed} of {lines} lines of compiled functions were executed, {executed / lines:.1%}; floor {FLOOR:.0%}")
    sys.exit(bool(failed) or executed < FLOOR * lines)


def _compiled(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) in NAMES for one in node.decorator_list):
            yield node


if __name__ == "__main__":
    main()
