"""Connections of an API process: limits on all and on one address, and a reserve beyond them that answers probes.

A connection over a limit is in the reserve until it has sent the head of its request: a probe is answered, and whatever
else is refused. So liveness does not depend on who holds connections open.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable

from app.errors import GpucastError, TooMany, Unavailable

# Connections of the reserve. Of more the oldest of the address that has most of them is closed at once.
RESERVE = 100
_RETRY_S = 2
# Whoever has an IPv6 address has its whole network of this length.
_IPV6_PREFIX = 64


class Connections:
    """Open connections by the address of the other end; those of the reserve with what closes them at once."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most, self._most_of_address = most, most_of_address
        self._admitted = Counter[str]()
        self._reserve: dict[object, tuple[str, Callable[[], None]]] = {}

    def admit(self, connection: object, address: str, abort: Callable[[], None]) -> GpucastError | None:
        """Count a new connection; return why it is over a limit, if so: then it is in the reserve."""
        if self._admitted.total() >= self._most:
            error: GpucastError = Unavailable(f"There are {self._most:,} connections, as many as are served.")
        elif address and self._admitted[address] >= self._most_of_address:
            most = f"{self._most_of_address:,} connections, as many as one address may have"
            error = TooMany(f"Your address has {most}.", retry_after_s=_RETRY_S)
        else:
            self._admitted[address] += 1
            return None
        self._reserve[connection] = address, abort
        if len(self._reserve) > RESERVE:
            self._make_room()
        return error

    def end(self, connection: object, address: str) -> None:
        """Forget a connection that was closed."""
        if self._reserve.pop(connection, None) is None:
            self._admitted[address] -= 1
            if not self._admitted[address]:
                del self._admitted[address]

    def _make_room(self) -> None:
        ((busiest, _),) = Counter(address for address, _ in self._reserve.values()).most_common(1)
        next(abort for address, abort in self._reserve.values() if address == busiest)()


def address_of(client: tuple[str, int] | None) -> str:
    """Return the address that a connection counts for; empty on a Unix socket."""
    if client is None or ":" not in client[0]:
        return "" if client is None else client[0]
    address = ipaddress.IPv6Address(client[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address.packed, _IPV6_PREFIX), strict=False))
