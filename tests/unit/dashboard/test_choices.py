"""Classes of GPUs, and the search beyond the catalogue."""

from __future__ import annotations

import pytest

from app.dashboard.choices import MOST_FOUND, gpu_class, search_gpus
from app.engine.catalogue import catalog_of, load_seed_specs


@pytest.mark.parametrize(("name", "series", "title"), [
    ("NVIDIA A10G", "", "Data centre"),
    ("NVIDIA GH200 144 GB", "", "Data centre"),
    ("Tesla V100 SXM2 32 GB", "", "Data centre"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "", "Data centre"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "", "Workstations"),
    ("Quadro FX 4600", "Quadro FX Tesla(x600)", "Workstations"),
    ("NVIDIA RTX A6000", "", "Workstations"),
    ("NVIDIA GeForce RTX 5090", "GeForce 50", "Desktops"),
    ("Intel Arc B580", "", "Desktops"),
    ("NVIDIA GeForce RTX 3060 Laptop GPU", "", "Laptops"),
    ("Quadro T1000 Mobile", "Quadro Turing-M(Tx000)", "Laptops"),
    ("Radeon HD 7540D IGP", "TeraScale 3 IGP(Trinity)", "Integrated and other"),
])  # fmt: skip
def test_products_have_classes(name: str, series: str, title: str) -> None:
    assert gpu_class(name, series) == title


def test_a_search_finds_only_what_the_catalogue_lacks() -> None:
    catalog = catalog_of(load_seed_specs())
    found = [choice for group in search_gpus(catalog, "geforce 4070") for choice in group.choices]
    assert all("4070" in choice.name for choice in found)
    assert "geforce-rtx-4070-ti" in {choice.id for choice in found}
    assert "geforce-rtx-4070" not in {choice.id for choice in found}
    assert all(catalog.find(choice.id) is not None for choice in found)
    assert sum(len(group.choices) for group in search_gpus(catalog, "geforce")) == MOST_FOUND
    assert search_gpus(catalog, "  ") == search_gpus(catalog, "no such gpu") == []
