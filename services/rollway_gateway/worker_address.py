"""Which addresses may be a worker's. Whoever may register one makes this process send requests there.

Refused, unless a setting allows it: link-local addresses and the other places where clouds serve credentials to
whoever asks from inside. A name is judged when a connection is made, by what it resolves to then.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_METADATA = frozenset({"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192"})
"""Of AWS and Google over IPv6, Alibaba and Oracle; the others' are link-local."""
_EMBEDS_IPV4 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def check_http_url(url: str) -> str:
    """Return ``url`` if it is http(s) with a host and without user, query or fragment.

    Raises:
        ValueError: saying what is wrong.
    """
    parts = urlsplit(url)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError(f"{url!r} holds a character that no URL may hold unescaped")
    if parts.scheme not in ("http", "https") or not parts.hostname or not _HOST.fullmatch(parts.hostname):
        raise ValueError(f"{url!r} is not an http(s) URL with a host")
    if "@" in parts.netloc:
        raise ValueError("the URL may not hold a user or a password")  # and it is not repeated
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} may not hold a query or a fragment")
    if parts.port == 0:
        raise ValueError(f"{url!r} names port 0")
    return url


def check_worker_url(url: str, *, allow_link_local: bool) -> str:
    """`check_http_url`, and an address in it is one a worker may have.

    Raises:
        ValueError: saying what is wrong.
    """
    host = urlsplit(check_http_url(url)).hostname
    assert host is not None
    address = _literal(host)
    if address is not None and not allow_link_local:
        _check_address(address, host)
    return url


class WorkerResolver(AbstractResolver):
    """The machine's resolver, without the addresses no worker may have."""

    def __init__(self) -> None:
        self._inner = DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises:
        OSError: the name is not known, or stands for such an address."""
        found = await self._inner.resolve(host, port, family)
        _check_all((one["host"] for one in found), host)
        return found

    async def close(self) -> None:
        await self._inner.close()


class Addresses:
    """What hosts' names stand for, for connections of our own: asked of the machine's resolver, kept for a while."""

    KEPT_S = 10.0

    def __init__(self, *, allow_link_local: bool) -> None:
        self._allow_link_local = allow_link_local
        self._known: dict[str, tuple[float, list[str]]] = {}

    async def __call__(self, host: str) -> list[str]:
        """Addresses, the preferred first.

        Raises:
            OSError: the name is not known, or stands for an address no worker may have.
        """
        loop = asyncio.get_running_loop()
        until, found = self._known.get(host, (0.0, []))
        if until <= loop.time():
            said = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(address[0]) for *_, address in said))
            if not self._allow_link_local:
                _check_all(found, host)
            self._known[host] = loop.time() + self.KEPT_S, found
        return found


def _check_all(addresses: Iterable[str], host: str) -> None:
    """Raises:
    OSError: one of them no worker may have."""
    for address in addresses:
        try:
            _check_address(ipaddress.ip_address(address.partition("%")[0]), host)
        except ValueError as e:
            raise OSError(str(e)) from None


def _literal(host: str) -> Address | None:
    """The address, where the host is one, also as the C library writes them: 0xa9fea9fe, 2852039166, 169.254.43518."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _check_address(address: Address, host: str) -> None:
    inner: Any = address
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or address
        if address in _EMBEDS_IPV4:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner.is_link_local or inner.is_multicast or str(inner) in _METADATA:
        raise ValueError(
            f"{host!r} is {inner}, a link-local or metadata address: no worker may be there "
            "(ROLLWAY_GATEWAY_ALLOW_LINK_LOCAL_WORKERS=true allows it)"
        )
