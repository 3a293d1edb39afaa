"""Collects the secrets to redact: Delegate's own, those in the environment, and logins in the user's files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from math import log2
from pathlib import Path
from urllib.parse import unquote_to_bytes

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.runner.secrets.forms import MIN_LENGTH
from delegate.runner.secrets.redaction import Redactor

ATTEMPT_TOKEN = "token of the attempt"  # noqa: S105  its name in redacted output
FILE_MAX = 1024 * 1024  # bytes; login files are smaller
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of a name: GITHUB_TOKEN, accessToken
# Names with one of these words hold a secret unless the value is a word; also run together, as in PGPASSWORD.
SECRET_WORD = re.compile(
    r".*(password|passwd|passphrase|secrets?|tokens?|apikey)|(api|access|private|signing|encryption)?keys?|passwords?"
)
LAST_SECRET_WORDS = frozenset({"pass", "pwd"})  # as the last word of a name
# Names with one of these words may hold a secret: the value must look random.
LOGIN_WORDS = frozenset(
    {"auth", "oauth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "creds", "jwt"}
)
LAST_LOGIN_WORDS = frozenset({"pat", "dsn"})
NO_SECRET = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})
# `"accessToken": "…"`, `oauth_token: …`, `password …`, `//host/:_authToken=…`, `aws_secret_access_key = …`
ENTRY = re.compile(
    rb"""(?i)[\w.-]*(?:token|secret|passw(?:or)?d|api_?key|secret[\w-]*key|private_?key|_auth)["']?\s*[\s:=]\s*["']?"""
    rb"""([^\s"',;}]{8,})"""
)
# `https://user:password@host`, and a header that git sends.
LOGIN = re.compile(rb"://[^/\s:@]*:([^/\s@]+)@")
HEADER = re.compile(rb"(?i)extraheader\s*=\s*[^\n]*(?:basic|bearer|token)\s+(\S{8,})")
STORE = re.compile(r"store\s+--file[= ]\"?([^\"\n]+)")
PLAIN_MIN_LENGTH = 16  # characters; a shorter value of one kind of character counts as a word, not as a secret
RANDOM_BITS = 18.0  # of the parts of a value that are not words
WORD_RUN = 3  # average length of the runs of one kind of character in words; in random text it is below 2
WORD_MAX = 20  # characters; a longer run is not a word
KINDS = (re.compile(rb"[a-z]"), re.compile(rb"[A-Z]"), re.compile(rb"[0-9]"), re.compile(rb"[^A-Za-z0-9_./: -]"))


class Secrets:
    """Builds the redactor, and rebuilds it when a login file changes: logins are renewed while a runner runs."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._stamps: dict[Path, tuple[int, int]] | None = None
        self._known: dict[str, bytes] = {}
        self._redactor = Redactor({})
        self.redactor()

    def redactor(self, ask_token: str | None = None) -> Redactor:
        """The current redactor; `ask_token` is an additional secret of one attempt."""
        files = login_files(self._settings, self._environ)
        stamps = {path: stamp for path in files.values() if (stamp := _stamp(path)) is not None}
        if stamps != self._stamps:
            self._known = known_secrets(self._settings, self._environ)
            self._redactor = Redactor(self._known)
            self._stamps = stamps
        if ask_token is None:
            return self._redactor
        return Redactor({**self._known, ATTEMPT_TOKEN: ask_token.encode()})

    def text(self, text: str) -> str:
        """Redact without checking the files for changes; used for every log line."""
        return self._redactor.text(text)


def known_secrets(settings: Settings, environ: Mapping[str, str]) -> dict[str, bytes]:
    """Secrets by name; a repeated name gets a number, and a repeated value keeps its first name."""
    found: dict[bytes, str] = {}
    for name, value in (*_environment_secrets(settings, environ), *_file_secrets(settings, environ)):
        if len(value) >= MIN_LENGTH:
            found.setdefault(value, name)
    named: dict[str, bytes] = {}
    for value, name in found.items():
        count = sum(known.partition(" #")[0] == name for known in named)
        named[f"{name} #{count + 1}" if count else name] = value
    return named


def _environment_secrets(settings: Settings, environ: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    if settings.token:
        yield "DELEGATE_TOKEN", settings.token.encode("utf-8", "surrogateescape")
    database = settings.database_url.encode("utf-8", "surrogateescape")
    yield from (("DELEGATE_DATABASE_URL", login) for login in _logins(database))
    for name, text in environ.items():
        value = text.strip().encode("utf-8", "surrogateescape")
        is_secret = value_rule(name)
        if is_secret is not None and is_secret(value):
            yield name, value
            yield from ((name, word) for word in value.split() if len(word) >= PLAIN_MIN_LENGTH and is_secret(word))
        yield from ((name, login) for login in _logins(value))


def value_rule(name: str) -> Callable[[bytes], bool] | None:
    """How to judge the value of a variable by the words of its name; None when it is no secret."""
    words = [word.lower() for word in WORDS.findall(name)]
    if name in NO_SECRET or not words:
        return None
    if words[-1] in LAST_SECRET_WORDS or any(SECRET_WORD.fullmatch(word) for word in words):
        return looks_secret
    return looks_random if words[-1] in LAST_LOGIN_WORDS or LOGIN_WORDS.intersection(words) else None


def looks_random(value: bytes) -> bool:
    """A stricter `looks_secret`: False for names and versions such as `keycloak-v26`. A user and a password need not
    be random."""
    if not looks_secret(value):
        return False
    is_login = re.fullmatch(rb"[^\s:]+:[^\s:]+", value) is not None
    return is_login or sum(map(_random_bits, re.findall(rb"[A-Za-z0-9]+", value))) >= RANDOM_BITS


def _random_bits(part: bytes) -> float:
    """The entropy of a part without separators; 0 for a word, with a number or in camel case."""
    runs = re.findall(rb"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", part)
    if len(part) / len(runs) >= WORD_RUN and max(map(len, runs)) < WORD_MAX:
        return 0.0
    counts = [part.count(bytes([char])) for char in set(part)]
    return sum(count * log2(len(part) / count) for count in counts)


def looks_secret(value: bytes) -> bool:
    """False for a word such as `password` or `postgres`, a number, a URL or a path: normal output contains those."""
    if len(value) < MIN_LENGTH or value.isdigit() or re.match(rb"[a-z+]+://", value):
        return False
    if value.startswith(b"/") and os.path.exists(value):  # noqa: PTH110  # any bytes, NUL too
        return False
    return len(value) >= PLAIN_MIN_LENGTH or sum(kind.search(value) is not None for kind in KINDS) >= 2


def login_files(settings: Settings, environ: Mapping[str, str]) -> dict[str, Path]:
    """Files that may hold this user's logins, by a readable name; most do not exist."""
    own = Home(settings.home)
    files = {"DELEGATE_TOKEN": own.token, "DELEGATE_SECRET_KEY": own.root / "secret.key", "pairing": own.pairing}
    if not environ.get("HOME"):
        return files
    home = Path(environ["HOME"])
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files |= {
        "gitconfig": home / ".gitconfig",
        "git config": config / "git" / "config",
        "git-credentials": home / ".git-credentials",
        "git credentials": config / "git" / "credentials",
        "netrc": home / ".netrc",
        "gh login": Path(environ.get("GH_CONFIG_DIR") or config / "gh") / "hosts.yml",
        "Claude login": Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / ".credentials.json",
        "Codex login": Path(environ.get("CODEX_HOME") or home / ".codex") / "auth.json",
        "npmrc": home / ".npmrc",
        "pypirc": home / ".pypirc",
        "AWS credentials": Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"),
    }
    for name in ("gitconfig", "git config"):
        for number, store in enumerate(STORE.findall(_text(_read(files[name])))):
            files[f"{name} store {number}"] = home / store.strip().removeprefix("~/")
    return files


def _file_secrets(settings: Settings, environ: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    for name, path in login_files(settings, environ).items():
        text = _read(path)
        if name.startswith("DELEGATE_"):
            yield name, text.strip()
            continue
        for pattern in (ENTRY, HEADER):
            yield from ((name, value) for value in pattern.findall(text) if looks_secret(value))
        yield from ((name, login) for login in _logins(text))


def _logins(text: bytes) -> Iterator[bytes]:
    """The passwords in URLs, both as written and decoded."""
    for login in LOGIN.findall(text):
        for value in (login, unquote_to_bytes(login)):
            if looks_secret(value):
                yield value


def _read(path: Path) -> bytes:
    """Empty when the path does not exist, is not a file, or cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(FILE_MAX)
    except OSError:
        return b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
