"""`gpucast prices`: what an hour of a GPU costs, brought in and listed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.config import Settings
from app.errors import BadInput

command = typer.Typer(no_args_is_help=True, help="Bring in and list prices of GPUs.")


@command.command("import")
def import_prices(
    file: Annotated[
        Path, typer.Argument(help="CSV: gpu, usd_per_hour, source, date; provider and region where there are any.")
    ],
) -> None:
    """Bring in a price table, all rows or none; what is there already stays as it is."""
    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.services.compare.price_rows import add_prices

    try:
        body = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error
    with open_runtime(Settings.from_env()) as runtime:
        with runtime.database.begin() as connection:
            catalog = load_catalog(connection)
        report = add_prices(runtime.database, catalog, body, "text/csv")
    print(f"{report.received} prices: {report.inserted} new, {report.unchanged} already there")


@command.command("list")
def list_prices(
    gpu: Annotated[str | None, typer.Option(help="Only of this GPU, by any of its names.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the items of GET /prices.")] = False,
) -> None:
    """List every price; * marks those that comparisons use today."""
    import msgspec

    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.engine.prices import PriceBook, to_listing, today_utc
    from app.store import prices

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        rows = prices.load(connection)
        wanted = None if gpu is None else load_catalog(connection).resolve(gpu).id
    book, today = PriceBook.of(rows), today_utc()
    items = [to_listing(row, book, today) for row in rows if wanted in (None, row.gpu_id)]
    if as_json:
        print(msgspec.json.encode({"items": items}).decode())
        return
    print(f"  {'GPU':<26}{'USD/h':>8}  {'date':<12}{'age':>6}  {'provider':<20}{'region':<14}source")
    for one in items:
        figures = f"{one.usd_per_hour:>8.4g}  {one.date!s:<12}{one.age_days:>5}d"
        where = f"{one.provider or '':<20}{one.region or '':<14}{one.source}"
        print(f"{'*' if one.counts else ' '} {one.gpu:<26}{figures}  {where}")
