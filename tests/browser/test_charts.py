"""Charts of the pages in a real browser: downloads, legend, zoom, measured points beside the predicted."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_dashboard import behind, column
from tests.service import Service

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


def drawn(page: Page, table: str) -> list[dict[str, Any]]:
    """Datasets of the chart of a table: label, series of the legend, number of points, whether a band or a limit."""
    sets: list[dict[str, Any]] = page.evaluate(
        """table => Chart.getChart(document.querySelector(`figure[data-table="${table}"] canvas`)).data.datasets.map(
          one => ({ label: one.label, series: one.series, points: one.data.length, band: one.fill === "shape",
                    limit: Boolean(one.limit) }))""",
        table,
    )
    return sets


def test_charts_download_as_csv_png_and_svg(page: Page, server: httpx.Client, tmp_path: Path) -> None:
    page.goto("/?gpu=nvidia-l4&gpu=a30")
    answer = behind(page, server)
    for button, name in (("CSV", "comparison.csv"), ("PNG", "comparison.png"), ("SVG", "comparison.svg")):
        with page.expect_download() as download:
            page.get_by_role("button", name=button).first.click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
    with (tmp_path / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["Time, ms"]) for row in rows] == [row["latency_ms"] for row in answer["ranking"]]
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    picture = ElementTree.fromstring((tmp_path / "comparison.svg").read_bytes())
    words = "".join(picture.itertext())
    assert "NVIDIA L4" in words and "Time, ms" in words
    assert len([one for one in picture.iter() if one.tag.endswith("}path")]) > 4


def test_a_legend_hides_series_and_a_chart_zooms_by_keys(page: Page) -> None:
    page.goto("/?kind=model&name=llama-3-8b&mode=decode&batch=2&sequence=512&dtype=bf16&gpu=nvidia-l4&gpu=b200")
    figure = page.locator('figure[data-table="batches"]')
    chart = "Chart.getChart(document.querySelector('figure[data-table=batches] canvas'))"
    hidden = f"{chart}.data.datasets.filter((d, k) => !{chart}.isDatasetVisible(k)).map(d => d.series)"
    button = figure.get_by_role("button", name="NVIDIA L4")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "false")
    assert page.evaluate(hidden) == ["NVIDIA L4"] * 3  # the ring, the line, the band
    page.keyboard.press("Enter")
    assert page.evaluate(hidden) == []
    axis = f"[{chart}.scales.x.min, {chart}.scales.x.max]"
    whole = page.evaluate(axis)
    figure.get_by_role("button", name="Zoom in").click()
    near = page.evaluate(axis)
    assert whole[0] < near[0] < near[1] < whole[1]
    figure.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(axis)[0] > near[0]
    for _ in range(3):
        figure.get_by_role("button", name="Zoom out").click()
    assert page.evaluate(axis) == pytest.approx(whole)
    figure.get_by_role("button", name="Log scale").click()
    assert page.evaluate(f"{chart}.options.scales.x.type") in ("linear", "logarithmic")


def test_measured_points_stand_on_the_predicted_curve(page: Page, server: httpx.Client) -> None:
    step = {"kind": "model", "name": "gpt2", "mode": "prefill", "sequence": 256, "dtype": "fp16"}
    rows = [
        {"gpu": "nvidia-l4", "software": "pytorch-2.1", "source": "my bench"}
        | {"latency_ms": ms, "workload": step | {"batch": batch}}
        for batch, ms in ((2, 3.5), (8, 13.0))
    ]  # fmt: skip
    server.post("/measurements", json=rows).raise_for_status()
    page.goto("/?kind=model&name=gpt2&mode=prefill&batch=4&sequence=256&dtype=fp16&gpu=nvidia-l4&gpu=a30")
    assert column(page, "batches-measured", "Time, ms") == pytest.approx([3.5, 13.0])
    assert column(page, "batches-measured", "Tokens/s") == pytest.approx([2 * 256 / 3.5e-3, 8 * 256 / 13e-3])
    (points,) = (one for one in drawn(page, "batches") if one["label"].endswith("measured"))
    assert points["series"] == "NVIDIA L4" and points["points"] == 2


def test_nightly_runs_of_the_scorecard_are_drawn(page: Page, service: Service) -> None:
    runs = [
        {"date": f"2026-11-0{k}", "version": "1", "commit": None, "asked": 9, "median": 10.0 + k, "held": 80}
        for k in range(1, 4)
    ]
    cell = {"source": "a", "gpu": "nvidia-l4", "model": "gpt2", "mode": "step", "asked": 9}
    cell |= {"median": 10.0, "bias": 1.0, "held": 80.0, "factor": 1.1}
    kept = service.settings.scorecard_file
    kept.write_text(json.dumps({"cells": [cell], "history": runs}), "utf-8")
    try:
        page.goto("/accuracy")
        (line,) = (one for one in drawn(page, "history") if one["points"] == 3 and not one["band"])
        assert line["series"] == "Whole workloads"
        assert column(page, "history", "Median error, %") == [11.0, 12.0, 13.0]
    finally:
        kept.unlink()


def test_measured_loads_stand_on_the_curve_of_a_served_model(page: Page, server: httpx.Client) -> None:
    load = {
        "kind": "serving", "name": "llama-3-8b", "dtype": "bf16", "software": "vllm", "parallelism": {"tensor": 1},
        "input_tokens": 512, "output_tokens": 128, "load": {"concurrency": 4},
    }  # fmt: skip
    row = {
        "gpu": "a100-sxm4-80gb",
        "software": "vllm-0.10",
        "source": "my bench",
        "workload": load,
        "latency_ms": 1700.0,
    }
    server.post("/measurements", json=[row | {"serving": {"ttft_ms": 60.0, "tpot_ms": 12.5}}]).raise_for_status()
    page.goto("/serving?name=llama-3-8b&dtype=bf16&tensor=1&input_tokens=512&output_tokens=128&gpu=a100-sxm4-80gb")
    assert column(page, "speeds-measured", "Tokens/s per user") == [pytest.approx(80.0)]
    assert column(page, "speeds-measured", "Tokens/s per GPU") == [pytest.approx(4 * 128 / 1.7)]
