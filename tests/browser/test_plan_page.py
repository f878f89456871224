"""The page of plans in a real browser: from nothing to a recommendation, at every width, and what its form covers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_charts import drawn
from tests.browser.test_dashboard import CONTRAST, behind, column
from tests.browser.test_serving_page import OUTSIDE, TRACES

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

RECOMMENDED_S = 60.0
PRICED = "/plan?prices=b200+5.5%0Ah200-sxm-141gb+3.8%0Ah100-sxm5-80gb+3%0Aamd-instinct-mi300x+2.5"
# Heads and cells of a table that reach out of the part of it that is in sight.
CUT = """table => { const box = document.querySelector(table).closest(".scroll").getBoundingClientRect();
  return [...document.querySelectorAll(table + " :is(th, td)")].filter(cell => cell.checkVisibility())
    .filter(cell => cell.getBoundingClientRect().right > box.right + 1).map(cell => cell.textContent.trim()); }"""
# Controls of the form that its button lies upon, wherever the page is scrolled to.
COVERED = """async () => { const button = document.querySelector(".go"), found = [];
  for (let top = 0; top < document.body.scrollHeight; top += 100) {
    scrollTo(0, top);
    const box = button.getBoundingClientRect();
    for (const one of document.querySelectorAll("#ask :is(input, select, textarea, summary)")) {
      const place = one.getBoundingClientRect();
      const below = place.top > box.bottom - 1, above = place.bottom < box.top + 1;
      if (one.checkVisibility() && !one.closest(".picks, .go") && !below && !above) found.push(one.id || one.name);
    }
  }
  scrollTo(0, 0); return found; }"""


def test_an_empty_page_leads_to_a_recommendation_in_six_actions(page: Page, server: httpx.Client) -> None:
    began = time.monotonic()
    page.goto("/plan")
    page.locator("#f-name summary").click()
    page.get_by_label("qwen3-32b", exact=True).check()
    page.get_by_label("How many").fill("10")
    page.get_by_label("US dollars per hour of one GPU").fill("b200 5.5\nh100-sxm5-80gb 3\nh200-sxm-141gb 3.8")
    page.get_by_role("button", name="Plan").click()
    page.wait_for_url("**/plan?*level=10*")
    expect(page.locator("#answer")).to_contain_text("Rent")
    assert time.monotonic() - began < RECOMMENDED_S
    choice = behind(page, server)["choices"][0]
    cost = choice["cost"]
    expect(page.locator("#answer")).to_contain_text(f"Rent {choice['devices']}")
    expect(page.locator("#answer")).to_contain_text(
        f"{cost['usd_per_hour']:,.2f} USD an hour, {cost['monthly_usd']:,.0f} a month"
    )
    expect(page.locator("#answer")).to_contain_text(
        f"{cost['usd_per_million_output_tokens']:.2f} per million output tokens"
    )
    expect(page.locator("#answer")).to_contain_text(f"meets both limits with {round(100 * choice['probability'])}")
    expect(page.locator("#changes li").first).to_contain_text("requests per second")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440, 1920])
def test_nothing_is_cut(page: Page, width: int, scheme: str, screenshots: Path) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(PRICED)
    page.screenshot(path=screenshots / f"plan-{width}-{scheme}.png", full_page=True)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate(OUTSIDE, width) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(CUT, "#choices") == []
    if scheme == "light":
        page.goto("/serving")
        assert page.evaluate(CUT, "#deployments") == []


def test_the_table_and_the_picture_are_the_answer(page: Page, server: httpx.Client) -> None:
    page.goto(PRICED)
    answer = behind(page, server)
    for head, field in (("USD/h", "usd_per_hour"), ("USD/month", "monthly_usd")):
        assert column(page, "choices", head) == [choice["cost"][field] for choice in answer["choices"]]
    assert column(page, "pareto", "Tokens/s per GPU") == [point["tokens_per_s_per_gpu"] for point in answer["pareto"]]
    figure = page.locator('figure[data-table="pareto"]')
    lines = [one for one in drawn(page, "pareto") if one["label"] == one["series"] and not one["limit"]]
    assert lines.pop()["points"] == len(answer["pareto"])  # the Pareto line
    assert sum(one["points"] for one in lines) == len(answer["pareto"])
    assert figure.get_by_role("img").get_attribute("aria-label")


def test_the_button_covers_no_field(page: Page) -> None:
    for path in ("/plan", "/serving", "/"):
        for height in (700, 1000):
            page.set_viewport_size({"width": 1440, "height": height})
            page.goto(path)
            assert page.evaluate(COVERED) == [], path


def test_chosen_gpus_come_first_and_the_rest_is_folded(page: Page) -> None:
    page.goto("/plan?gpu=l40s&gpu=b200")
    chosen = page.get_by_role("group", name="GPUs that are compared")
    assert [box.input_value() for box in chosen.locator(":checked").all()] == ["l40s", "b200"]
    expect(page.get_by_label("Search the GPUs")).to_be_hidden()
    chosen.get_by_label("NVIDIA B200").uncheck()
    page.get_by_text("Other GPUs").click()
    page.get_by_label("Search the GPUs").fill("h200")
    page.locator('#gpu-list input[value="h200-sxm-141gb"]').check()
    expect(page.locator("#gpu-count")).to_have_text("2 chosen.")
    page.get_by_role("button", name="Plan").click()
    page.wait_for_url("**gpu=h200**")
    assert "gpu=b200" not in page.url and "gpu=l40s" in page.url


def test_a_preset_keeps_the_rest_of_the_question(page: Page) -> None:
    page.goto(f"{PRICED}&level=3")
    page.get_by_role("link", name="Code", exact=True).click()
    expect(page.get_by_label("Time per output token, ms")).to_have_value("20")
    expect(page.get_by_label("Input tokens")).to_have_value("4096")
    expect(page.get_by_label("How many")).to_have_value("3")
    expect(page.get_by_label("US dollars per hour of one GPU")).to_have_value(
        "b200 5.5\nh200-sxm-141gb 3.8\nh100-sxm5-80gb 3\namd-instinct-mi300x 2.5"
    )


def test_a_recorded_file_takes_the_place_of_the_load(page: Page, server: httpx.Client) -> None:
    for path, limits in ((PRICED, {"ttft_ms": 500, "tpot_ms": 50}), ("/serving", {"ttft_ms": 500, "tpot_ms": 50})):
        page.goto(path)
        file = {"name": "ours.csv", "mimeType": "text/csv", "buffer": TRACES["ours.csv"].encode()}
        page.locator("#f-trace").set_input_files(file)
        expect(page.locator("#f-trace-help")).to_have_text("ours.csv: 3 requests.")
        line = page.locator("#curl").text_content() or ""
        body = json.loads(line.partition(" -d '")[2].removesuffix("'"))
        trace = {"arrival_s": [0, 0.5, 1.5], "input_tokens": [100, 200, 50], "output_tokens": [20, 30, 1]}
        kept = {name: value for name, value in body["workload"].items() if name not in trace}
        answer = server.post("/plan", json=body | limits | {"workload": kept | {"load": {"trace": trace}}}).json()
        first = answer["choices"][0]
        recorded = page.locator("#recorded-requests")
        expect(recorded.locator("p.lead")).to_contain_text(f"Rent {first['devices']}")
        expect(recorded.locator("p.lead")).to_contain_text(f"{first['cost']['usd_per_hour']:.2f} USD an hour")
        expect(page.locator("#recorded tbody tr")).to_have_count(len(answer["choices"]))
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440
