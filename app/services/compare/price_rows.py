"""Import prices from a JSON list or a CSV file. All rows are checked first; then all are stored, or none."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from msgspec import Struct

from app.errors import BadInput, FieldError, NotFound, TooLarge, UnsupportedMedia
from app.store import gpus as store
from app.store.gpus import Price
from app.store.session import Database
from app.tables.catalog import Catalog
from app.wire.compare_form import PriceTerm
from app.wire.decoding import convert, decode_plain
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import Name
from app.wire.measurement_rows import NUMBER, TEXT, Column, read_columns

# All prices are held in memory with the catalogue.
MOST_ROWS = 20_000
# Most wrong rows looked for: finding the names closest to an unknown one takes time.
_MOST_ERRORS = 100
# Below and above these the unit is wrong: the cheapest card costs some cents an hour, the dearest some hundred dollars.
LEAST_USD, MOST_USD = 1e-3, 1e6
MOST_DEVICES = 1_024
# Nothing of the catalogue was rented before, and nobody publishes a price further ahead.
FIRST_DAY, MOST_AHEAD = datetime.date(2010, 1, 1), datetime.timedelta(days=366)
_JSON, _CSV = "application/json", "text/csv"


class PriceIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """US dollars for one hour of one device on one day, and the source. `gpu` is any name of a GPU."""

    gpu: Annotated[Name, about("Id or alias of the GPU")]
    usd_per_hour: Annotated[float, about("US dollars per hour of one device", ge=LEAST_USD, le=MOST_USD)]
    source: Annotated[Name, about("Who measured or published it")]
    date: Annotated[datetime.date, about("Day of the price")]
    provider: Annotated[Name | None, about("Cloud provider")] = None
    region: Annotated[Name | None, about("Where")] = None
    term: Annotated[PriceTerm, about("How it is rented")] = "on_demand"
    devices: Annotated[
        float,
        about("Devices of the instance that is rented as a whole; the price is of one", ge=1, le=MOST_DEVICES, **WHOLE),
    ] = 1


PRICE_EXAMPLE: dict[str, Any] = EXAMPLES["price"]
_NUMBERS = ("usd_per_hour", "devices")
_COLUMNS = {name: Column((name,), NUMBER if name in _NUMBERS else TEXT) for name in PriceIn.__struct_fields__}


@dataclass(frozen=True, slots=True)
class PriceReport:
    """Rows of an import: `unchanged` ones were stored before."""

    received: int = field(metadata={"description": "Rows in the body"})
    inserted: int = field(metadata={"description": "Rows stored now"})
    unchanged: int = field(metadata={"description": "Rows that were stored before"})


def add_prices(
    database: Database, catalog: Catalog, body: bytes, content_type: str | None, key_id: int | None = None
) -> PriceReport:
    """Store every row of a body, JSON by default. Raises BadInput with the errors of all rows, and then stores none."""
    media = (content_type or _JSON).partition(";")[0].strip().lower()
    rows = [replace(price, key_id=key_id) for price in _check_rows(_rows(body, media), catalog)]
    with database.begin() as connection:
        inserted = store.insert_prices(connection, rows)
    return PriceReport(len(rows), inserted, len(rows) - inserted)


def _rows(body: bytes, media: str) -> list[Any]:
    if media == _CSV:
        rows: Any = read_columns(body, _COLUMNS, max_rows=MOST_ROWS)
    elif media == _JSON:
        rows = decode_plain(body)
    else:
        raise UnsupportedMedia(f"Prices are read as {_JSON} or {_CSV}; this is {media!r}.")
    if not isinstance(rows, list) or not rows:
        raise BadInput("Send a list of prices, also for a single one.")
    if len(rows) > MOST_ROWS:
        raise TooLarge(f"At most {MOST_ROWS:,} prices are accepted at once; this list has {len(rows):,}.")
    return rows


def _check_rows(rows: list[Any], catalog: Catalog) -> list[Price]:
    prices: list[Price] = []
    errors: list[FieldError] = []
    for k, row in enumerate(rows):
        try:
            prices.append(_price(row, k, catalog))
        except BadInput as error:
            errors += error.errors
        except NotFound as error:
            errors.append(FieldError((k, "gpu"), error.detail))
        if len(errors) >= _MOST_ERRORS:
            break
    if errors:
        wrong = f"{'at least ' * (len(errors) >= _MOST_ERRORS)}{len({error.loc[0] for error in errors})}"
        raise BadInput(f"{wrong} of {len(rows)} prices cannot be stored, so none was.", errors=errors)
    return prices


def _price(row: Any, k: int, catalog: Catalog) -> Price:
    form = convert(row, PriceIn, example=PRICE_EXAMPLE, loc=(k,))
    last_day = datetime.datetime.now(datetime.UTC).date() + MOST_AHEAD
    if not FIRST_DAY <= form.date <= last_day:
        raise BadInput("", errors=[FieldError((k, "date"), f"must be from {FIRST_DAY} to {last_day}, a year from now")])
    return Price(
        gpu_id=catalog.resolve(form.gpu).id,
        usd_per_hour=form.usd_per_hour,
        source=form.source,
        dated=form.date,
        provider=form.provider or "",
        region=form.region or "",
        term=form.term,
        devices=int(form.devices),
    )
