"""Finds the proxy for a relay in HTTPS_PROXY and NO_PROXY, and opens a tunnel through it. Imports little, as the bridge
uses it too."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK = ("localhost", "::1")
# The variables of curl. The relay is reached by https, or on this machine, where no proxy is used.
PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
EXCEPTION_VARIABLES = ("no_proxy", "NO_PROXY")
DEFAULT_PORT = 3128
ANSWER_MAX = 16 * 1024  # bytes


class ProxyRefused(ConnectionError):
    """The proxy did not open a tunnel to the relay."""


class Proxy:
    __slots__ = ("authorization", "host", "port")

    def __init__(self, host: str, port: int, authorization: str = "") -> None:
        self.host, self.port, self.authorization = host, port, authorization

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def connect_request(self, host: str, port: int) -> bytes:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        login = f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""
        return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode("latin-1")

    def check_answer(self, received: bytes) -> bool:
        """Return whether the tunnel is open; False: more of the answer is to come."""
        if b"\r\n\r\n" not in received:
            if len(received) > ANSWER_MAX:
                raise ProxyRefused(f"the proxy {self.name} does not speak HTTP; check HTTPS_PROXY")
            return False
        first = received.partition(b"\r\n")[0].decode("latin-1")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ProxyRefused(f"the proxy {self.name} does not speak HTTP; check HTTPS_PROXY")
        if status.startswith("407"):
            raise ProxyRefused(f"the proxy {self.name} wants a login; put it in HTTPS_PROXY: http://user:password@…")
        if not status.startswith("2"):
            shown = "".join(c for c in status[:80] if c.isprintable())
            advice = "allow the relay there, or add its host to NO_PROXY"
            raise ProxyRefused(f"the proxy {self.name} refused the connection ({shown}); {advice}")
        return True


def proxy_for(host: str, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy through which to reach this host; None: none. Loopback is always reached directly."""
    url = next((environ[name] for name in PROXY_VARIABLES if environ.get(name)), "")
    exceptions = next((environ[name] for name in EXCEPTION_VARIABLES if environ.get(name)), "")
    if not url or host in LOOPBACK or host.startswith("127.") or is_exempt(host, port, exceptions):
        return None
    return parse_proxy(url)


def parse_proxy(url: str) -> Proxy:
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415  few users have a proxy

    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or (80 if "://" in url else DEFAULT_PORT)
    except ValueError:
        raise ProxyRefused("HTTPS_PROXY is not a valid URL; use the form http://proxy.example:3128") from None
    if parts.scheme != "http" or not parts.hostname:
        raise ProxyRefused(f"HTTPS_PROXY: a proxy with {parts.scheme}:// is not supported; use http://") from None
    if parts.username is None:
        return Proxy(parts.hostname, port)
    import base64  # noqa: PLC0415

    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(parts.hostname, port, "Basic " + base64.b64encode(login).decode())


def is_exempt(host: str, port: int, exceptions: str) -> bool:
    """Whether NO_PROXY names this host: by `*`, a name with its sub-domains, an address, or a network."""
    for entry in exceptions.replace(",", " ").lower().split():
        name, _, only_port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        if only_port and only_port != str(port):
            continue
        name = name.strip("[]").removeprefix("*.").lstrip(".")
        if entry == "*" or host.lower() == name or (name and host.lower().endswith(f".{name}")):
            return True
        if "/" in name and _is_in_network(host, name):
            return True
    return False


def _is_in_network(host: str, network: str) -> bool:
    from ipaddress import ip_address, ip_network  # noqa: PLC0415

    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


EXPIRED, NOT_YET_VALID, WRONG_NAMES = 10, 9, (62, 64)  # OpenSSL's codes


def explain_certificate(host: str, code: int, message: str) -> str:
    """Return why the relay's certificate is not trusted, and what to do."""
    if code == EXPIRED:
        return f"the certificate of {host} has expired; renew it on the relay, and check this machine's clock"
    if code == NOT_YET_VALID:
        return f"the certificate of {host} is not valid yet; check this machine's clock"
    if code in WRONG_NAMES:
        return f"the certificate is not for {host}; use the relay's public URL"
    advice = "set DELEGATE_CA_FILE to that of its authority, or log in with --ca-file"
    return f"the certificate of {host} is not trusted ({message}); {advice}"
