"""The page of served models in a real browser: three widths, light and dark, the form, a saturated load, an error."""

from __future__ import annotations

import csv
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_charts import drawn
from tests.browser.test_dashboard import CONTRAST, behind, column

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

PLACE = (
    "/serving?name=llama-3-8b&dtype=bf16&tensor=1&input_tokens=512&output_tokens=128&gpu=a100-sxm4-80gb&gpu=nvidia-l4"
)
OUTSIDE = """w => [...document.querySelectorAll("body *")].filter(e =>
  !e.closest(".scroll, svg svg, .skip, .unseen") &&
  (e.getBoundingClientRect().right > w + 1 || e.getBoundingClientRect().left < -1))
  .map(e => e.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_nothing_is_wider_than_the_screen(page: Page, width: int, scheme: str, screenshots: Path) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/serving")
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate(OUTSIDE, width) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    names = page.locator("#deployments tbody th").all()
    assert names and all((name.bounding_box() or {})["height"] < 60 for name in names)  # in whole words
    page.screenshot(path=screenshots / f"serving-{width}-{scheme}.png", full_page=True)


def test_small_screens_have_the_answer_first(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    for path in ("/serving", "/", "/detail", "/scaling"):
        page.goto(path)
        answer, form = page.locator("#results").bounding_box(), page.locator("#ask").bounding_box()
        assert answer and form and answer["y"] + answer["height"] <= form["y"]
    page.get_by_role("link", name="Change the question").click()
    expect(page.locator("#ask")).to_be_in_viewport()


def test_the_first_view_has_both_charts_with_their_tables(page: Page, server: httpx.Client) -> None:
    page.goto("/serving")
    expect(page.locator("p.lead strong").first).to_contain_text("NVIDIA")
    ranked = behind(page, server)["choices"]
    costs = [row["cost"]["cost_per_million_tokens"] for row in ranked]
    assert column(page, "deployments", "USD per 1M tokens") == costs
    curves = page.request.get(page.url + "?format=json").json()["curves"]
    for chart, points in (("speeds", "by_concurrency"), ("rates", "by_rate")):
        figure = page.locator(f'figure[data-table="{chart}"]')
        sets = drawn(page, chart)
        lines = [one for one in sets if one["label"] == one["series"] and not one["limit"]]
        count = sum(len(one[points]) for one in curves)
        assert sum(one["points"] for one in lines) == page.locator(f"#{chart} tbody tr").count() == count
        assert len(lines) == sum(one["band"] for one in sets) == len(ranked)
        assert sum(one["limit"] for one in sets) == 1
        assert figure.get_by_role("img").get_attribute("aria-label")
    assert column(page, "speeds", "Tokens/s per GPU") == [
        point["tokens_per_s_per_gpu"] for one in curves for point in one["by_concurrency"]
    ]
    best = next(one["best"]["cost_per_million_tokens"] for one in curves if one["gpu"] == ranked[0]["gpu"])
    assert any(one["label"].endswith(f"{best:.2f} USD per 1M tokens") for one in drawn(page, "speeds"))


def test_the_form_comes_back_with_what_was_typed(page: Page) -> None:
    page.goto(PLACE)
    page.get_by_label("Input tokens").fill("300")
    page.locator("#f-load").select_option("in flight")
    page.get_by_label("How many").fill("16")
    page.get_by_label("Time to first token, ms").fill("250")
    page.get_by_role("button", name="Predict").click()
    page.wait_for_url("**/serving?*level=16*")
    expect(page.locator("h1")).to_have_text("llama-3-8b, 300 tokens in, 128 out, 16 requests in flight")
    expect(page.locator("#f-load")).to_have_value("concurrency")
    expect(page.get_by_label("Time to first token, ms")).to_have_value("250")
    expect(page.locator("#deployments tbody tr")).to_have_count(2)


def test_a_saturated_load_says_what_bears_it(page: Page) -> None:
    page.goto(f"{PLACE}&load=rate_per_s&level=150")
    expect(page.locator("#deployments .badge.bad").first).to_have_text("saturated")
    page.get_by_role("link", name="replicas").first.click()
    expect(page.get_by_label("Replicas", exact=True)).not_to_have_value("")


def test_an_error_stands_at_its_field(page: Page) -> None:
    page.goto(f"{PLACE}&load=rate_per_s&level=4&tpot_ms=soon")
    expect(page.get_by_role("alert")).to_be_focused()
    expect(page.locator("#f-tpot_ms-help")).to_contain_text("got 'soon'")
    expect(page.get_by_label("Time per output token, ms")).to_have_value("soon")


def test_curves_download_as_csv(page: Page, tmp_path: Path) -> None:
    page.goto(PLACE)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    assert download.value.suggested_filename == "serving-throughput.csv"
    download.value.save_as(tmp_path / "curve.csv")
    with (tmp_path / "curve.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["Tokens/s per GPU"]) for row in rows] == column(page, "speeds", "Tokens/s per GPU")


TRACES = {
    "ours.csv": "arrival_s,input_tokens,output_tokens\n0,100,20\n0.5,200,30\n1.5,50,1\n",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,100,20\n"
    "2023-11-16 18:17:03.5,200,30\n2023-11-16 18:17:04.5,50,1\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 100, "output_length": 20}\n'
    '{"timestamp": 500, "input_length": 200, "output_length": 30}\n'
    '{"timestamp": 1500, "input_length": 50, "output_length": 1}\n',
}


@pytest.mark.parametrize("name", TRACES)
def test_recorded_requests_take_the_place_of_the_load(page: Page, server: httpx.Client, name: str) -> None:
    page.goto(PLACE)
    page.locator("#f-trace").set_input_files({"name": name, "mimeType": "text/plain", "buffer": TRACES[name].encode()})
    expect(page.locator("#f-trace-help")).to_have_text(f"{name}: 3 requests.")
    columns = {"arrival_s": [0, 0.5, 1.5], "input_tokens": [100, 200, 50], "output_tokens": [20, 30, 1]}
    workload = {
        "kind": "serving", "name": "llama-3-8b", "dtype": "bf16", "software": "vllm", "parallelism": {"tensor": 1},
        "load": {"trace": columns},
    }  # fmt: skip
    answer = server.post("/predict", json={"gpus": ["a100-sxm4-80gb", "nvidia-l4"], "workload": workload}).json()
    names = {gpu: server.get(f"/gpus/{gpu}").json()["name"] for gpu in ("a100-sxm4-80gb", "nvidia-l4")}
    means = {names[one["gpu"]]: one["serving"]["ttft_ms"]["mean"] for one in answer["predictions"]}
    for row in page.locator("#recorded tbody tr").all():
        shown, gpu = row.locator("td").first.inner_text(), row.locator("th").inner_text().partition(" \u00d7")[0]
        assert float(shown.replace(",", "")) == pytest.approx(means[gpu], rel=1e-3)
    expect(page.locator("#recorded tbody tr")).to_have_count(2)


def test_a_file_without_the_columns_says_which_is_missing(page: Page) -> None:
    page.goto(PLACE)
    file = {"name": "cities.csv", "mimeType": "text/csv", "buffer": b"city,people\nBern,134000\n"}
    page.locator("#f-trace").set_input_files(file)
    expect(page.locator("#f-trace-help")).to_have_text("cities.csv: no column arrival_s; it has city, people")
