"""Reports: the PDF and the links of a saved answer by one click, and printed pages."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_dashboard import behind

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

PLAN = "/plan?prices=b200+5.5%0Ah100-sxm5-80gb+3"
CUT = """() => [...document.querySelectorAll("main :is(th, td, p, li, h1, h2, figcaption)")]
  .filter(e => e.checkVisibility() &&
  (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline" ||
   e.getBoundingClientRect().right > innerWidth + 1)).map(e => e.outerHTML.slice(0, 100))"""


def words_of(pdf: bytes) -> str:
    """The text of a report in the core fonts."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    shown = b" ".join(text for one in streams for text in re.findall(rb"\((.*?)(?<!\\)\) Tj", zlib.decompress(one)))
    return shown.decode("latin-1")


@pytest.mark.parametrize("path", [PLAN, "/serving", "/?gpu=nvidia-l4&gpu=a30", "/detail"])
def test_one_click_gives_a_report_and_links(page: Page, server: httpx.Client, tmp_path: Path, path: str) -> None:
    page.goto(path)
    with page.expect_download() as download:
        page.get_by_role("button", name="PDF report").click()
    assert re.fullmatch(r"gpucast-\d+.pdf", download.value.suggested_filename)
    download.value.save_as(tmp_path / "report.pdf")
    report = (tmp_path / "report.pdf").read_bytes()
    assert 1 <= report.count(b"/Type /Page\n") <= 2
    words = words_of(report)
    assert all(part in words for part in ("Assumptions", "gpucast ", "Reproduced from the versions above: unchanged"))
    link = page.get_by_role("link", name="its figures").get_attribute("href")
    saved = server.get(str(link)).raise_for_status().json()
    answer = saved["answer"]
    assert saved["unchanged"] is True and f"/predictions/{saved['id']}.pdf" in words
    assert answer == behind(page, server)
    rows = answer.get("choices") or answer.get("ranking") or answer["predictions"]
    whole = {word for row in rows for word in (row["gpu"], f"{row.get('devices', 1)}")}
    assert whole | {"GPUs" if len(rows) > 1 else "Assumptions"} <= set(words.split())  # no word is cut
    if path == PLAN:
        first = answer["choices"][0]
        assert f"{first['devices']} x {first['gpu']} for {first['cost']['usd_per_hour']:,.2f} USD an hour" in words
        assert {"ttft_ms", "tpot_ms", "highest_rate_per_s"} <= first["serving"].keys() and first["parallelism"]


@pytest.mark.parametrize("path", [PLAN, f"{PLAN}&gpu=all", "/serving", "/", "/detail"])
def test_a_printed_page_is_one_or_two_of_a4(page: Page, screenshots: Path, path: str) -> None:
    page.goto(path)
    file = screenshots / f"print-{path.strip('/').partition('?')[0] or 'compare'}.pdf"
    assert 1 <= page.pdf(path=file, format="A4", prefer_css_page_size=True).count(b"/Type /Page\n") <= 2
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 710, "height": 1000})  # of A4 within its margins
    expect(page.locator(".paper")).to_contain_text(page.url)
    assert page.evaluate(CUT) == []
