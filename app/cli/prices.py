"""`gpucast prices`: imports and lists GPU prices."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from app.cli.request_fields import read_file
from app.config import Settings
from app.errors import BadInput

command = typer.Typer(no_args_is_help=True, help="Import and list GPU prices.")


@command.command("import")
def import_prices(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="CSV with columns gpu, usd_per_hour, source, date, and optionally provider and region; or SkyPilot's "
            "vms.csv, a catalogue of gpuhunt, a bill in FOCUS 1.2, or an answer of OpenCost's /assets."
        ),
    ] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="Provider of a catalogue (default: its folder's name).")
    ] = None,
    day: Annotated[
        datetime | None, typer.Option("--date", formats=["%Y-%m-%d"], help="Day of a catalogue (default: today).")
    ] = None,
    gpuhunt: Annotated[
        bool, typer.Option("--gpuhunt", help="Fetch today's catalogue by the package gpuhunt, in place of FILE.")
    ] = False,
    spot: Annotated[bool, typer.Option("--spot", help="Take a catalogue's interruptible instances.")] = False,
    instances: Annotated[
        Path | None, typer.Option(metavar="FILE", help="SkyPilot's vms.csv, which says what GPUs instances have.")
    ] = None,
) -> None:
    """Import prices, all rows or none; stored prices are kept. An instance's price is divided by its devices."""
    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.services.compare.gpuhunt_catalogue import published_catalogue
    from app.services.compare.opencost_prices import opencost_offers, read_assets
    from app.services.compare.price_catalogues import Asked, format_of, read_instances, read_offers
    from app.services.compare.price_rows import add_prices

    if (file is None) != gpuhunt:
        raise BadInput("Give a FILE, or --gpuhunt to fetch its catalogue" + (", not both." if gpuhunt else "."))
    body, media = (published_catalogue() if file is None else read_file(file)), "text/csv"
    asked = Asked(
        provider or ("" if file is None else file.absolute().parent.name), (day or datetime.now(UTC)).date(), spot
    )
    known = {} if instances is None else read_instances(read_file(instances))
    tool, assets = format_of(body), read_assets(body)
    with open_runtime(Settings.from_env()) as runtime:
        with runtime.database.begin() as connection:
            catalog = load_catalog(connection)
        if tool is not None or assets is not None:
            offers = (
                read_offers(body, tool, asked, known)
                if tool is not None
                else opencost_offers(assets or [], asked._replace(provider=provider or ""), known, catalog)
            )
            for reason, count in offers.left_out.most_common():
                print(f"{count} rows left out: {reason}")
            if not offers.rows:
                raise BadInput(f"{file or 'gpuhunt'} has no price of a known GPU.")
            body, media = json.dumps(offers.rows).encode(), "application/json"
        report = add_prices(runtime.database, catalog, body, media)
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
    if not items:
        print(
            "No prices are stored: `gpucast prices import FILE` stores some; --price GPU=USD gives one in a question."
        )
        return
    print(f"  {'GPU':<26}{'USD/h':>8}  {'date':<12}{'age':>6}  {'provider':<20}{'region':<14}source")
    for item in items:
        figures = f"{item.usd_per_hour:>8.4g}  {item.date!s:<12}{item.age_days:>5}d"
        where = f"{item.provider or '':<20}{item.region or '':<14}{item.source}"
        print(f"{'*' if item.counts else ' '} {item.gpu:<26}{figures}  {where}")
