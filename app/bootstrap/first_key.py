"""The way into an installation that asks for keys and has none yet."""

from __future__ import annotations

from app.store import keys
from app.store.session import Database

_WORDS = """\
gpucast asks for API keys here (GPUCAST_KEYS), and no admin had one. This is the first, shown this once:

    {key}

Send it as 'Authorization: Bearer KEY', or sign in with it in a browser. Make others with
'gpucast keys create NAME --role read|predict|contribute|admin' or POST /keys, and revoke this one then.
"""


def announce(database: Database) -> None:
    """Where no admin has a key, make one and print it; processes that start together print one."""
    with database.begin() as connection:
        key = keys.create_first(connection)
    if key is not None:
        print(_WORDS.format(key=key), flush=True)
