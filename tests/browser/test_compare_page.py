"""The ranking of the comparison page in a real browser: its width, groups, ties, units, and mends of errors."""

from __future__ import annotations

from itertools import pairwise

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_charts import drawn
from tests.browser.test_dashboard import behind, column

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

ALL = "/?kind=model&name=llama-3-8b&mode=prefill&batch=1&sequence=2048&dtype=bf16&gpu=all"
LARGE = (
    "/?kind=model&name=llama-3.1-70b&mode=decode&batch=8&sequence=4096&dtype=bf16"
    "&gpu=h100-sxm5-80gb&gpu=b200&gpu=amd-instinct-mi300x&gpu=nvidia-l4&gpu=rtx-3060&prices=h100-sxm5-80gb+2.5"
)
WIDTHS = "[...document.querySelectorAll('#ranking')].map(t => [t.scrollWidth, t.parentElement.clientWidth])[0]"


@pytest.mark.parametrize("rank_by", ["latency", "throughput", "cost", "energy"])
def test_the_ranking_needs_992_pixels(page: Page, rank_by: str) -> None:
    page.goto(f"{LARGE}&rank_by={rank_by}")
    table, room = page.evaluate(WIDTHS)
    assert table <= room == 992
    heads = [head.strip() for head in page.locator("#ranking thead th").all_text_contents()]
    assert {"GPU", "Time, ms", "Tokens/s", "USD per 1M tokens", "Power, W"} <= set(heads)


@pytest.mark.parametrize(("width", "most"), [(390, 5000), (768, 4000), (1440, 2500)])
def test_all_gpus_make_a_short_page(page: Page, width: int, most: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(ALL)
    rows = page.locator("#ranking tr.gpu")
    visible = sum(row.is_visible() for row in rows.all())
    assert rows.count() > 50 and visible < 20
    assert page.evaluate("document.documentElement.scrollHeight") < most


def test_tied_gpus_share_their_places_and_unfold(page: Page, server: httpx.Client) -> None:
    page.goto(ALL)
    single = [row for row in behind(page, server)["ranking"] if row["devices"] == 1 and row["memory"]["fits"]]
    best = single[0]
    tied = next(k for k, row in enumerate(single[1:], 1) if row["gpu"] not in best["indistinguishable_from"])
    tier = page.locator("#ranking tbody.tier").first
    expect(tier.locator("tr.gpu")).to_have_count(tied)
    assert set(tier.locator("tr.gpu td:first-child").all_text_contents()) == {f"1\N{EN DASH}{tied}"}
    expect(tier.locator("tr.gpu").nth(1)).to_be_hidden()
    height = page.locator("figure.chart .plot").first.bounding_box()
    tier.get_by_label(f"{tied - 1} more, statistically tied").check()
    expect(tier.locator("tr.gpu").nth(1)).to_be_visible()
    taller = page.locator("figure.chart .plot").first.bounding_box()
    assert height and taller and taller["height"] > height["height"]  # the chart shows them too


def test_gpus_that_need_others_are_a_group(page: Page, server: httpx.Client) -> None:
    page.goto(LARGE)
    ranking = behind(page, server)["ranking"]
    groups = page.locator("#ranking tbody.group").all_text_contents()
    split = sorted({row["devices"] for row in ranking if row["memory"]["fits"]} - {1})
    names = ["On one GPU", *(f"Split over {devices} GPUs" for devices in split), "Too little memory"]
    assert [name.strip() for name in groups] == names
    short = page.locator("#ranking tr.muted")
    expect(short).to_have_count(1)
    expect(short).to_contain_text("needs")
    labels = page.evaluate("Chart.getChart(document.querySelector('canvas')).data.labels")
    assert labels[-1] == "NVIDIA GeForce RTX 3060"
    expect(page.locator("p.lead")).to_contain_text("Of single GPUs, NVIDIA B200 is the fastest")
    expect(page.locator("p.lead")).to_contain_text("Split over 8 GPUs, NVIDIA H100 SXM5 80 GB is the fastest")


def test_columns_sort_without_groups_and_come_back(page: Page) -> None:
    page.goto(LARGE)
    before = page.locator("#ranking").inner_text()
    page.get_by_role("button", name="Tokens/s", exact=True).click()
    rates = [float(cell.get_attribute("value") or "") for cell in page.locator("#ranking td:nth-child(4) data").all()]
    assert len(rates) == 5 and all(low <= high for low, high in pairwise(rates))
    expect(page.locator("#ranking tbody.group").first).to_be_hidden()
    page.get_by_role("button", name="Place").click()
    assert page.locator("#ranking").inner_text().replace(" ▲", "") == before


@pytest.mark.parametrize(
    ("query", "head", "factor"),
    [
        ("name=llama-3-8b&mode=prefill&batch=2&sequence=512", "USD per 1M tokens", 1e6 / 1024),
        ("name=llama-3-8b&mode=decode&batch=2&sequence=512", "USD per 1M tokens", 1e6 / 2),
        ("name=resnet50&mode=inference&batch=4", "USD per 1M images", 1e6 / 4),
        ("name=resnet50&mode=training&batch=4", "USD per 1,000 steps", 1e3),
        ("name=resnet50&mode=training&batch=4&dataset_size=1001", "USD per epoch", 251),
    ],
)
def test_costs_are_of_what_people_buy(page: Page, server: httpx.Client, query: str, head: str, factor: float) -> None:
    page.goto(f"/?kind=model&{query}&dtype=bf16&gpu=h100-sxm5-80gb&prices=h100-sxm5-80gb+3&rank_by=cost")
    (row,) = behind(page, server)["ranking"]
    heads = [text.strip() for text in page.locator("#ranking thead th").all_text_contents()]
    cell = page.locator(f"#ranking tr.gpu > :nth-child({heads.index(head) + 1}) data")
    assert float(cell.get_attribute("value") or "") == pytest.approx(factor * row["cost_usd"])
    expect(page.locator("p.lead")).to_contain_text(" USD per ")


def test_throughput_is_drawn_against_time_with_the_pareto_line(page: Page, server: httpx.Client) -> None:
    query = "kind=model&name=llama-3-8b&mode=decode&batch=3&sequence=1024&dtype=bf16&gpu=nvidia-l4&gpu=h100-sxm5-80gb"
    page.goto(f"/?{query}")
    labels = [one["label"] for one in drawn(page, "batches") if one["label"]]
    names = ["NVIDIA H100 SXM5 80 GB", "NVIDIA L4"]
    assert labels == [*(f"{name}, asked" for name in names), *names, "Pareto-optimal"]
    marked = page.locator("#batches tbody tr td:last-child").all_text_contents()
    batches, times, rates = (column(page, "batches", name) for name in ("Batch", "Time, ms", "Tokens/s"))
    asked = {row["gpu"]: row for row in behind(page, server)["ranking"]}
    at = batches.index(3)
    assert times[at] == pytest.approx(asked["h100-sxm5-80gb"]["latency_ms"])
    assert rates[at] == pytest.approx(asked["h100-sxm5-80gb"]["throughput_per_s"])
    points = list(zip(times, rates, strict=True))
    best = [not any(a <= time and b >= rate and (a, b) != (time, rate) for a, b in points) for time, rate in points]
    assert [text == "yes" for text in marked] == best and 0 < sum(best) < len(best)
    page.goto("/?kind=kernel&gpu=nvidia-l4")
    expect(page.locator('figure[data-table="batches"]')).to_have_count(0)


def test_log_axes_are_named_and_scaling_has_an_ideal(page: Page) -> None:
    axes = "Object.values(Chart.getChart(document.querySelector('canvas')).options.scales).map(s => s.title.text)"
    page.goto("/scaling?kind=model&name=resnet50&mode=training&batch=32&dtype=fp32&gpu=nvidia-l4&devices=1,2,4")
    assert page.evaluate(axes) == ["Devices (log scale)", "Throughput, per s (log scale)"]
    drawn = "Chart.getChart(document.querySelector('canvas')).data.datasets"
    sets = page.evaluate(f"{drawn}.filter(d => d.label).map(d => [d.label, d.data.map(p => p.y / p.x)])")
    assert [label for label, _ in sets] == ["NVIDIA L4", "ideal"]
    assert sets[1][1] == pytest.approx([sets[0][1][0]] * 3)
    page.goto("/?kind=kernel&gpu=nvidia-l4&gpu=a30")
    assert "log" not in page.evaluate(axes)[0]
    page.get_by_role("button", name="Log scale").click()
    assert page.evaluate(axes)[0].endswith("(log scale)")


@pytest.mark.parametrize(
    ("query", "mend"),
    [
        ("gpu=nvidia-l4&gpu=rtx-4071", "rtx-4070"),
        ("gpu=nvidia-l4&prices=rtx-4071+2", "rtx-4070"),
        ("gpu=nvidia-l4&predictor=ato", "auto"),
        ("gpu=nvidia-l4&coverage=80", "0.8"),
        ("gpu=nvidia-l4&kind=operators&op=linaer", "linear"),
        ("gpu=nvidia-l4&kind=model&name=resnet51&batch=1&dtype=fp32", "resnet50"),
        ("gpu=nvidia-l4&kind=model&name=gpt2&sequence=64&dtype=bf17", "bf16"),
        ("gpu=nvidia-l4&kind=model&name=gpt2&sequence=64&mode=prefil", "prefill"),
        ("gpu=nvidia-l4&kind=model&name=resnet50&mode=decode", "inference"),
        ("gpu=nvidia-l4&kind=model&name=resnet50&sequence=64", "without sequence"),
    ],
)
def test_an_error_has_a_link_that_mends_it(page: Page, query: str, mend: str) -> None:
    page.goto(f"/?{query}")
    page.get_by_role("alert").get_by_role("link", name=mend, exact=True).click()
    expect(page.locator("#ranking tr.gpu").first).to_be_visible()
    assert "gpu=nvidia-l4" in page.url


@pytest.mark.parametrize("path", ["/detail?on=rtx-4071", "/scaling?gpu=rtx-4071", "/serving?gpu=rtx-4071"])
def test_the_other_pages_mend_too(page: Page, path: str) -> None:
    page.goto(path)
    page.get_by_role("alert").get_by_role("link", name="rtx-4070", exact=True).click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("h1")).to_be_visible()
