"""`gpucast prices`: imports and lists GPU prices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.config import Settings
from app.errors import BadInput

command = typer.Typer(no_args_is_help=True, help="Import and list GPU prices.")


@command.command("import")
def import_prices(
    file: Annotated[
        Path,
        typer.Argument(help="CSV with columns gpu, usd_per_hour, source, date, and optionally provider and region."),
    ],
) -> None:
    """Import a price table, all rows or none; stored prices are kept."""
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
    print(f"{report.received} prices: {report.inserted} new, {report.unchanged} already stored")


@command.command("list")
def list_prices(
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only prices of this GPU (id, alias or name).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the items of GET /prices.")] = False,
) -> None:
    """List all prices; * marks those in use today."""
    import msgspec

    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.engine.prices import PriceBook, to_listing, today_utc
    from app.store import prices

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        rows = prices.load(connection)
        gpu_id = None if gpu is None else load_catalog(connection).resolve(gpu).id
    book, today = PriceBook.of(rows), today_utc()
    items = [to_listing(row, book, today) for row in rows if gpu_id in (None, row.gpu_id)]
    if as_json:
        print(msgspec.json.encode({"items": items}).decode())
        return
    print(f"  {'GPU':<26}{'USD/h':>8}  {'date':<12}{'age':>6}  {'provider':<20}{'region':<14}source")
    for item in items:
        figures = f"{item.usd_per_hour:>8.4g}  {item.date!s:<12}{item.age_days:>5}d"
        where = f"{item.provider or '':<20}{item.region or '':<14}{item.source}"
        print(f"{'*' if item.counts else ' '} {item.gpu:<26}{figures}  {where}")
