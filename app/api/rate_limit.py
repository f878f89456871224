"""Rate limit per caller over all processes of all replicas.

Each process counts in memory, and twice a second exchanges its counts with the others through the database, so that no
request waits for it. Without the database, each process limits by its own count.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection

from app.errors import TooMany, Unavailable
from app.store.clock import now_s
from app.store.rate_counts import NONE, Requests, Slot, exchange
from app.store.session import Database

LOG = logging.getLogger(__name__)
EXCHANGE_S = 0.5
# The others' counts are no longer used when they are older.
STALE_S = 3 * EXCHANGE_S
# A window of fewer exchanges is short; and windows whose counts are exchanged: this one, and those before it.
LEAST_EXCHANGES, WINDOWS = 8, 3


class Others(NamedTuple):
    """Requests to other processes as of a time, seconds."""

    at: float
    requests: Mapping[Slot, Requests]

    def expected(self, slot: Slot, most: int, *, is_short: bool) -> float:
        """Return the requests of a caller to others in a window of `most`.

        In a short one, where exchanges come too late, as many as in the windows before, at most their even share.
        """
        if not is_short:
            return self.requests.get(slot, NONE).number
        window, caller = slot
        before = [self.requests.get((window - k, caller), NONE) for k in range(1, WINDOWS)]
        processes = 1 + max(each.processes for each in before)
        return min(max(each.number for each in before), most * (1.0 - 1.0 / processes))


class RateLimit:
    """At most so many requests of one caller per window.

    Windows are the same in all processes: they follow the database's clock, once it is known.
    """

    def __init__(
        self, text: str, now: Callable[[], float] = time.time, shared: Callable[[Connection], float] = now_s
    ) -> None:
        """`now` and `shared`: seconds by the clocks of this process and of the database."""
        from limits import parse  # noqa: PLC0415 - 0.2 s that a start without a rate limit need not spend

        self._item = parse(text)
        self._window_s = self._item.get_expiry()
        self._is_short = self._window_s < LEAST_EXCHANGES * EXCHANGE_S
        self._own_now, self._shared = now, shared
        self._ahead = 0.0  # of the database's clock
        self._mine: Counter[Slot] = Counter()
        self._others = Others(0.0, {})
        self._process = uuid.uuid4().hex
        self._counting = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _now(self) -> float:
        return self._own_now() + self._ahead

    def hit(self, caller: str) -> None:
        """Count one request. Raises TooMany with the seconds until the next window; such a request does not count."""
        now = self._now()
        window = int(now // self._window_s)
        slot = (window, _digest(caller))
        with self._counting:
            if self._mine[slot] + self._expected(slot, now) >= self._item.amount:
                left = (window + 1) * self._window_s - now
                raise TooMany(f"The limit is {self._item}.", retry_after_s=max(1, math.ceil(left)))
            self._mine[slot] += 1

    def _expected(self, slot: Slot, now: float) -> float:
        """Requests of a caller to other processes in this window."""
        if now - self._others.at > STALE_S:
            return 0.0
        return self._others.expected(slot, self._item.amount, is_short=self._is_short)

    def start(self, database: Database) -> None:
        """Exchange counts from now on."""
        self._thread = threading.Thread(target=self._keep_exchanging, args=[database], name="rates", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop exchanging."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _keep_exchanging(self, database: Database) -> None:
        while not self._stop.wait(EXCHANGE_S):
            try:
                self.exchange(database)
            except Unavailable:
                continue  # the snapshot's thread reports it
            except Exception:
                LOG.exception("requests are counted by this process alone")

    def exchange(self, database: Database) -> None:
        """Tell the other processes of this one's requests, and learn of theirs."""
        if not self._recent():
            return  # nobody asks here, so nobody needs a limit
        with database.begin() as connection:
            self._ahead = self._shared(connection) - self._own_now()
            # Of a process whose clock was wrong, none may be left: it must not forget the windows of the others.
            if mine := self._recent():
                self._others = Others(self._now(), exchange(connection, self._process, mine))

    def _recent(self) -> dict[Slot, int]:
        """Forget requests of other windows than the last ones; return those that are left."""
        last = int(self._now() // self._window_s)
        with self._counting:
            self._mine = Counter(
                {slot: count for slot, count in self._mine.items() if last - WINDOWS < slot[0] <= last}
            )
            return dict(self._mine)


def _digest(caller: str) -> str:
    """Return a digest: the database need not hold addresses."""
    return hashlib.blake2b(caller.encode(), digest_size=16).hexdigest()
