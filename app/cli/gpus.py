"""`gpucast gpus` and `gpucast prices`: the GPU catalogue, and what GPUs cost."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.database import open_catalog
from app.cli.options import read_file
from app.errors import BadInput, Conflict, Malformed

if TYPE_CHECKING:
    from app.tables.gpus import GpuSpec

gpus = typer.Typer(no_args_is_help=True, help="List, show and add GPUs.")

_AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON of GET /gpus.")]
_Name = Annotated[str, typer.Argument(help="A GPU's id, alias or name.")]


@gpus.command("list")
def list_gpus(as_json: _AsJson = False) -> None:
    """List the GPUs of this installation."""
    from app.tables.complete import spec_to_dict

    with open_catalog() as (_, known):
        specs = known.specs
    if as_json:
        print(json.dumps({"items": [spec_to_dict(spec) for spec in specs]}, indent=2))
        return
    width = max(len(spec.id) for spec in specs)
    print(f"{'id':{width}}  {'SMs':>4}  {'TFLOP/s FP32':>12}  {'GB/s':>6}  {'GiB':>5}  name")
    for spec in specs:
        print(_line(spec, width))


def _line(spec: GpuSpec, width: int) -> str:
    flops, bandwidth = spec.peak_flops["fp32"] / 1e12, spec.memory_bandwidth_bytes_per_s / 1e9
    memory = spec.memory_bytes / 2**30
    return f"{spec.id:{width}}  {spec.sm_count:4d}  {flops:12.2f}  {bandwidth:6.0f}  {memory:5.0f}  {spec.name}"


@gpus.command("show")
def show(name: _Name) -> None:
    """Show all figures of a GPU and their sources."""
    from app.tables.complete import spec_to_dict

    with open_catalog() as (_, known):
        spec = known.resolve(name)
    print(json.dumps(spec_to_dict(spec), indent=2))


@gpus.command("add")
def add(file: Annotated[Path, typer.Argument(help="JSON file of one GPU; - reads standard input.")]) -> None:
    """Add a GPU, existing or planned; figures missing from the file are inferred."""
    from app.store.gpus import insert_spec
    from app.tables.complete import complete

    spec = complete(_read(file))
    with open_catalog() as (runtime, known):
        clashes = known.taken(spec)
        if clashes:
            raise Conflict("Another GPU has that name.", errors=clashes)
        with runtime.database.begin() as connection:
            insert_spec(connection, spec, "user")
    print(f"Added {spec.id}.")


def _read(file: Path) -> Any:
    try:
        return json.loads(sys.stdin.read() if str(file) == "-" else file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Malformed(f"{file} is not a readable JSON file: {error}") from error


prices = typer.Typer(no_args_is_help=True, help="Import, list and delete GPU prices.")


@prices.command("import")
def import_prices(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="CSV with columns gpu, usd_per_hour, source, date, and optionally provider, region, term, devices; or "
            "SkyPilot's vms.csv, a catalogue of gpuhunt, a bill in FOCUS 1.2, an answer of OpenCost's /assets, or a "
            "seed_data/prices.json of a newer gpucast."
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
    from app.services.compare.price_catalogues import (
        Terms,
        format_of,
        opencost_offers,
        published_catalogue,
        read_assets,
        read_instances,
        read_lists,
        read_offers,
    )
    from app.services.compare.price_rows import add_prices

    if (file is None) != gpuhunt:
        raise BadInput("Give a FILE, or --gpuhunt to fetch its catalogue" + (", not both." if gpuhunt else "."))
    body, media = (published_catalogue() if file is None else read_file(file)), "text/csv"
    source = Terms(
        provider or ("" if file is None else file.absolute().parent.name), (day or datetime.now(UTC)).date(), spot
    )
    known = {} if instances is None else read_instances(read_file(instances))
    tool, assets, lists = format_of(body), read_assets(body), read_lists(body)
    with open_catalog() as (runtime, catalog):
        if tool is not None or assets is not None:
            offers = (
                read_offers(body, tool, source, known)
                if tool is not None
                else opencost_offers(assets or [], source._replace(provider=provider or ""), known, catalog)
            )
            for reason, count in offers.left_out.most_common():
                print(f"{count} rows left out: {reason}")
            if not offers.rows:
                raise BadInput(f"{file or 'gpuhunt'} has no price of a known GPU.")
            lists = offers.rows
        if lists is not None:
            body, media = json.dumps(lists).encode(), "application/json"
        report = add_prices(runtime.database, catalog, body, media)
    print(f"{report.received} prices: {report.inserted} new, {report.unchanged} already stored")


@prices.command("list")
def list_prices(
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only prices of this GPU (id, alias or name).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the items of GET /prices.")] = False,
) -> None:
    """List all prices, those that ship too; * marks those in use today, of each term."""
    import msgspec

    from app.engine.prices import PriceBook, to_listing, today_utc
    from app.store.gpus import load_prices

    with open_catalog() as (runtime, catalog), runtime.database.begin() as connection:
        rows = load_prices(connection)
        gpu_id = None if gpu is None else catalog.resolve(gpu).id
    book, today = PriceBook.of(rows), today_utc()
    items = [to_listing(row, book, today) for row in rows if gpu_id in (None, row.gpu_id)]
    if as_json:
        print(msgspec.json.encode({"items": items}).decode())
        return
    if not items:
        print("No price is known: `gpucast prices import FILE` stores some; --price GPU=USD gives one in a question.")
        return
    where = f"{'term':<10}{'of':>3}  {'provider':<20}{'region':<14}source"
    print(f"  {'GPU':<26}{'USD/h':>8}  {'date':<12}{'age':>6}  {where}")
    for item in items:
        figures = f"{item.usd_per_hour:>8.4g}  {item.date!s:<12}{item.age_days:>5}d"
        where = f"{item.term:<10}{item.devices:>3}  {item.provider or '':<20}{item.region or '':<14}{item.source}"
        print(f"{'*' if item.counts else ' '} {item.gpu:<26}{figures}  {where}")


@prices.command("delete")
def delete_prices(  # noqa: PLR0913, PLR0917  (typer makes an option of each)
    number: Annotated[int | None, typer.Option("--id", metavar="ID", help="This price.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this GPU (id, alias or name).")] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this provider.")] = None,
    region: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this region.")] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this source.")] = None,
    key: Annotated[int | None, typer.Option(metavar="ID", help="Those that this API key sent.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the prices that would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
) -> None:
    """Delete the prices that match all given options, after showing their number and asking; those that ship stay."""
    from app.store.gpus import remove_prices

    with open_catalog() as (runtime, catalog):
        gpu_id = None if gpu is None else catalog.resolve(gpu).id
        filters: dict[str, str | int | None] = {"id": number, "provider": provider, "region": region, "source": source}
        filters |= {"gpu_id": gpu_id, "key_id": key}
        if all(value is None for value in filters.values()):
            raise BadInput("Say which prices: --id, --gpu, --provider, --region, --source or --key.")
        with runtime.database.begin() as connection:
            count = remove_prices(connection, filters, dry_run=True)
        if dry_run or not count:
            print(f"{count:,} prices would be deleted" if dry_run else "no price matches")
            return
        if not yes:
            typer.confirm(f"Delete {count:,} prices?", abort=True)
        with runtime.database.begin() as connection:
            print(f"{remove_prices(connection, filters):,} prices deleted")
