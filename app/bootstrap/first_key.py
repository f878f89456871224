"""Create the first admin key of an installation that requires keys."""

from __future__ import annotations

from app.store import keys
from app.store.session import Database

_MESSAGE = """\
This installation requires API keys (GPUCAST_KEYS) and has no admin key yet. This is the first one, shown only once:

    {key}

Send it as 'Authorization: Bearer KEY', or sign in with it in a browser. Create other keys with
'gpucast keys create NAME --role read|predict|contribute|admin' or POST /keys, then revoke this one.
"""


def announce(database: Database) -> None:
    """Create and print an admin key if there is none. Processes that start together print one key only."""
    with database.begin() as connection:
        key = keys.create_first(connection)
    if key is not None:
        print(_MESSAGE.format(key=key), flush=True)
