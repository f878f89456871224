"""The choosers of networks and GPUs in a real browser: groups, search, and what the chosen network lacks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.service import Service

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

LACKING = "[...document.querySelectorAll('#f-mode option:disabled')].map(option => option.value)"


def test_networks_are_searched_in_groups(page: Page) -> None:
    page.goto("/")
    page.locator("#f-name summary").click()
    groups = page.locator("#network-list [role=group]")
    assert [group.get_attribute("aria-label") for group in groups.all()] == [
        "Language models",
        "Encoders of text",
        "Vision transformers",
        "Diffusion transformers",
        "ConvNets",
    ]
    page.get_by_label("Search the networks").fill("resnet 50")
    expect(page.locator("#network-list label:visible")).to_have_count(2)
    expect(groups.nth(0)).to_be_hidden()
    page.get_by_label("resnet50", exact=True).check()
    expect(page.locator("#f-name summary")).to_contain_text("resnet50")


def test_modes_that_a_network_lacks_are_grey(page: Page) -> None:
    page.goto("/?kind=model&name=llama-3-8b&mode=decode&batch=1&sequence=128&gpu=nvidia-l4&dtype=bf16")
    assert page.evaluate(LACKING) == []
    page.locator("#f-name summary").click()
    page.get_by_label("resnet50", exact=True).check()
    assert page.evaluate(LACKING) == ["prefill", "decode"]
    expect(page.get_by_label("Mode", exact=True)).to_have_value("inference")
    expect(page.get_by_label("Context length")).to_be_disabled()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**name=resnet50**")
    expect(page.locator("#ranking tr.gpu")).to_have_count(1)
    page.locator("#f-name summary").click()
    page.get_by_label("gpt2", exact=True).check()
    assert page.evaluate(LACKING) == []
    expect(page.get_by_label("Context length")).to_have_value("512")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**name=gpt2**")
    expect(page.locator("#ranking tr.gpu")).to_have_count(1)


def test_gpus_are_in_groups_and_all_2900_are_found(page: Page) -> None:
    page.goto("/?kind=kernel&gpu=nvidia-l4")
    chosen = page.get_by_role("group", name="GPUs that are compared")
    expect(chosen.locator('[value="nvidia-l4"]')).to_be_checked()
    expect(page.get_by_label("Search the GPUs")).to_be_hidden()
    page.get_by_text("Other GPUs").click()
    groups = page.locator("#gpu-list").get_by_role("group")
    titles = [group.get_attribute("aria-label") for group in groups.all()]
    assert titles[:2] == ["Data centre: NVIDIA", "Data centre: AMD"]
    assert {"Workstations: NVIDIA", "Desktops: NVIDIA", "Processors: Intel"} <= set(titles)
    page.get_by_label("Search the GPUs").fill("gtx 970")
    page.get_by_label("NVIDIA GeForce GTX 970 4 GiB", exact=True).check()
    page.get_by_label("Search the GPUs").fill("h100 pcie")
    expect(page.get_by_label("NVIDIA GeForce GTX 970 4 GiB", exact=True)).to_be_checked()
    page.get_by_label("NVIDIA H100 PCIe 80 GB").check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**gpu=geforce-gtx-970**")
    expect(page.locator("#ranking tr.gpu")).to_have_count(3)
    expect(page.locator("#ranking")).to_contain_text("NVIDIA GeForce GTX 970")


def test_the_page_of_one_gpu_finds_all_of_them(page: Page) -> None:
    page.goto("/detail?kind=kernel&on=nvidia-l4")
    page.get_by_text("Other GPUs").click()
    page.get_by_label("Search the GPUs").fill("gtx 970")
    page.get_by_label("NVIDIA GeForce GTX 970 4 GiB", exact=True).check()
    page.get_by_role("button", name="Predict").click()
    page.wait_for_url("**on=geforce-gtx-970**")
    expect(page.locator("h1")).to_contain_text("NVIDIA GeForce GTX 970")


def test_the_catalogue_is_searched_beyond_its_rows(page: Page) -> None:
    page.goto("/catalogue")
    page.get_by_label("Search", exact=True).fill("gtx 970")
    page.get_by_role("button", name="Search all 2,900").click()
    page.get_by_role("link", name="NVIDIA GeForce GTX 970", exact=True).click()
    expect(page.locator("h1")).to_have_text("NVIDIA GeForce GTX 970")


def test_choosers_work_without_scripts(browser: Browser, service: Service) -> None:
    context = browser.new_context(base_url=str(service.client.base_url), java_script_enabled=False)
    page = context.new_page()
    page.goto("/?kind=model&name=resnet50&batch=1&dtype=fp32&gpu=nvidia-l4")
    expect(page.locator("#f-mode option:disabled")).to_have_count(2)
    page.locator("#f-name summary").click()
    page.get_by_label("resnet18", exact=True).check()
    page.get_by_text("A GPU that is not listed").click()
    page.get_by_label("Its name").fill("GTX 970")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_contain_text("resnet18")
    expect(page.locator("#ranking tr.gpu")).to_have_count(2)
    context.close()
