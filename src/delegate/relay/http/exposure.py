"""By which names a relay may be reached, and from which address a request comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.types import Scope

from delegate.config.settings import Settings
from delegate.config.values import LOOPBACK
from delegate.errors import HostRefused, HttpsRequired, OriginRefused

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
FORWARDED_FOR, FORWARDED_PROTO = "x-forwarded-for", "x-forwarded-proto"
UNENCRYPTED_PATHS = frozenset({"/healthz", "/readyz"})  # without a token; load balancers ask directly
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Headers = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """How a relay can be reached. The default is a relay for its own machine only."""

    hosts: frozenset[str] = LOOPBACK_NAMES
    public_url: str = ""
    proxies: tuple[Network, ...] = ()
    needs_proxy: bool = False  # it listens for plain HTTP off loopback: only its proxies may call it

    @cached_property
    def public_origin(self) -> str:
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}" if self.public_url else ""

    def check(self, scope: Scope, headers: Headers) -> None:
        """Refuse unencrypted requests, and web pages: those that reach the relay by another host name, and those of
        another origin."""
        if (self.needs_proxy or self.proxies) and scope["path"] not in UNENCRYPTED_PATHS:
            self._check_encryption(scope, headers)
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_own_host(_host_name(hosts[0]).lower(), scope):
            raise HostRefused(host=",".join(hosts) or "(none)")
        own = f"{scope.get('scheme', 'http')}://{hosts[0]}"
        for origin in headers.get("origin", []):
            if origin != own and (not self.public_origin or origin != self.public_origin):
                raise OriginRefused(origin=origin)

    def caller(self, scope: Scope, headers: Headers) -> CallerAddress | None:
        """Return where a request comes from. Only a trusted proxy can name another address than its own."""
        peer = _peer(scope)
        if peer is None or not self._is_proxy(peer):
            return None if peer is None else CallerAddress(address=peer)
        named = [part for value in headers.get(FORWARDED_FOR, []) for part in value.split(",")]
        address, is_forwarded = peer, False
        for text in reversed(named):  # each proxy adds the address of its own peer at the end
            found = parse_address(_host_name(text.strip()).strip("[]"))
            if found is None:
                break
            address, is_forwarded = found, True
            if not self._is_proxy(found):
                break
        return CallerAddress(address=address, is_forwarded=is_forwarded)

    def _check_encryption(self, scope: Scope, headers: Headers) -> None:
        peer = _peer(scope)
        if self.needs_proxy and peer is not None and not peer.is_loopback and not self._is_proxy(peer):
            raise HttpsRequired(url=self.public_url or "its https address")
        if peer is not None and self._is_proxy(peer) and headers.get(FORWARDED_PROTO, [])[-1:] == ["http"]:
            raise HttpsRequired(url=self.public_url or "its https address")

    def _is_own_host(self, host: str, scope: Scope) -> bool:
        """Whether the name is one of this relay, or the address at which the request arrived."""
        if host in self.hosts:
            return True
        server = scope.get("server")
        arrived_at = None if server is None else parse_address(server[0])
        return arrived_at is not None and self.hosts != LOOPBACK_NAMES and parse_address(host.strip("[]")) == arrived_at

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self.proxies)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerAddress:
    address: Address
    is_forwarded: bool = False  # a proxy named it

    @property
    def is_this_machine(self) -> bool:
        return self.address.is_loopback and not self.is_forwarded


def exposure_of(settings: Settings) -> Exposure:
    """Return how a relay that `delegate serve` starts with these settings can be reached."""
    public = urlsplit(settings.public_url).hostname
    names = {bracket(name.lower()) for name in (settings.serve_host, public) if name}
    is_plain = settings.tls_cert is None
    return Exposure(
        hosts=LOOPBACK_NAMES | names | frozenset(settings.allowed_host),
        public_url=settings.public_url,
        proxies=tuple(ip_network(network) for network in settings.trusted_proxy),
        needs_proxy=is_plain and settings.serve_host not in LOOPBACK,
    )


def bracket(host: str) -> str:
    """Return a host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host


def parse_address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _peer(scope: Scope) -> Address | None:
    client = scope.get("client")
    return None if client is None else parse_address(client[0])


def _host_name(host: str) -> str:
    """Remove the port, which a tunnel may have changed; an IPv6 address keeps its brackets."""
    head, colon, port = host.rpartition(":")
    return head if colon and port.isdecimal() and (":" not in head or head.endswith("]")) else host
