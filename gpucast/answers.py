"""Answers as notebooks show them: the JSON, a table of its rows, and a picture of their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib import import_module
from typing import Any

import msgspec

from app.cli.show import flat
from app.errors import BadInput

_ROWS = ("predictions", "ranking", "choices")
# Columns of a table, where an answer has them, and their heads.
_SHOWN = {
    "gpu": "GPU",
    "devices": "devices",
    "meets": "meets",
    "latency_ms": "ms",
    "interval_ms.low": "low",
    "interval_ms.high": "high",
    "serving.ttft_ms.mean": "TTFT, ms",
    "serving.tpot_ms.mean": "TPOT, ms",
    "job_s": "job, s",
    "throughput_per_s": "per s",
    "cost_usd": "USD",
    "energy_j": "J",
    "bound": "bound",
    "support": "support",
}


class Answer(dict[str, Any]):
    """The JSON of an answer to a request for `workload`."""

    def __init__(self, response: msgspec.Struct, workload: Mapping[str, Any]) -> None:
        super().__init__(msgspec.json.decode(msgspec.json.encode(response)))
        self._response, self._workload = response, workload

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows: predictions, ranking or choices."""
        return next(self[name] for name in _ROWS if name in self)

    def to_pandas(self) -> Any:
        """Return a DataFrame, a row per prediction, ranked GPU or choice; fields of fields are `interval_ms.low`."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError:
            raise ModuleNotFoundError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame([dict(flat(row)) for row in self.rows])

    def _repr_html_(self) -> str:
        rows = [dict(flat(row)) for row in self.rows]
        shown = [name for name in _SHOWN if any(row.get(name) is not None for row in rows)]
        head = "".join(f"<th>{_SHOWN[name]}</th>" for name in shown)
        body = "".join(f"<tr>{''.join(f'<td>{_text(row.get(name))}</td>' for name in shown)}</tr>" for row in rows)
        warnings = dict.fromkeys(warning for row in self.rows for warning in row.get("warnings", ()))
        notes = "".join(f"<li>{escape(each)}</li>" for each in warnings)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{table}{self._picture()}{f'<ul>{notes}</ul>' if notes else ''}"

    def _picture(self) -> str:
        """Return the picture of `gpucast predict --plot`; nothing where there is no figure to draw."""
        from app.dashboard.charts import answers, drawing  # noqa: PLC0415

        try:
            return drawing.as_svg(answers.chart_of(self._response, answers.workload_title(self._workload))).decode()
        except BadInput:
            return ""


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
