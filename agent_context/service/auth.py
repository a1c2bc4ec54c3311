"""Who may do what: keys of which only the hash is kept, their scopes and tenants."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
from msgspec import Struct

from agent_context.errors import InvalidOptions
from agent_context.service.errors import Problem, ServiceError

__all__ = ["ApiKey", "KeyFile", "Principal", "Scope", "is_loopback"]

Scope = Literal["read", "write", "admin"]
"""`write` may read too, and `admin` may do everything, `/metrics` included."""

DEFAULT_TENANT: Final = "default"
_ALLOWS: Final = {"read": {"read"}, "write": {"read", "write"}, "admin": {"read", "write", "admin"}}
_TENANT: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Principal(Struct, frozen=True, kw_only=True):
    """Whoever asks."""

    tenant: str = DEFAULT_TENANT
    scopes: frozenset[str] = frozenset({"read", "write", "admin"})
    key_id: str = ""
    """Empty without keys."""
    keep_unstored: bool | None = None
    """See `ServiceConfig.keep_unstored`; None leaves it to that."""

    def check(self, scope: Scope) -> None:
        """Raises `ServiceError` (403) unless this may be done."""
        if scope not in self.scopes:
            text = f"the key has no scope {scope!r}; it has {', '.join(sorted(self.scopes))}"
            raise ServiceError(
                Problem(status=403, message=text, type="permission_error", code="missing_scope")
            )


class ApiKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key as it is kept."""

    id: str
    sha256: str
    """Of the key, in hexadecimal digits."""
    tenant: str = DEFAULT_TENANT
    scopes: tuple[Scope, ...] = ("write",)
    name: str = ""
    created_at: float = 0.0
    """Unix seconds."""
    keep_unstored: bool = False

    def principal(self) -> Principal:
        """Who has the key."""
        scopes = frozenset[str]().union(*(_ALLOWS[scope] for scope in self.scopes))
        return Principal(
            tenant=self.tenant, scopes=scopes, key_id=self.id, keep_unstored=self.keep_unstored
        )


class KeyFile:
    """The keys in a JSON file, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._keys: dict[str, ApiKey] = {}

    def load(self) -> Sequence[ApiKey]:
        """The keys, oldest first. Raises `InvalidOptions` for a file that can't be read."""
        with self._lock:
            self._refresh()
            return tuple(self._keys.values())

    def find(self, token: str) -> ApiKey | None:
        """The key that this is. Looked up by its hash: how long it takes says nothing of it."""
        with self._lock:
            self._refresh()
            return self._keys.get(hash_key(token))

    def create(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        scopes: Sequence[Scope] = ("write",),
        name: str = "",
        keep_unstored: bool = False,
    ) -> tuple[str, ApiKey]:
        """Make a key and keep its hash. The key itself is in the reply, and nowhere else."""
        if not _TENANT.fullmatch(tenant):
            raise InvalidOptions(f"tenant: small letters, digits, - and _; not {tenant!r}")
        wrong = [scope for scope in scopes if scope not in get_args(Scope)]
        if wrong or not scopes:
            raise InvalidOptions(f"scopes: of {', '.join(get_args(Scope))}; not {wrong}")
        token = f"ac-{secrets.token_urlsafe(32)}"
        key = ApiKey(
            id=f"key_{secrets.token_hex(6)}",
            sha256=hash_key(token),
            tenant=tenant,
            scopes=tuple(scopes),
            name=name,
            created_at=time.time(),
            keep_unstored=keep_unstored,
        )
        self._write([*self.load(), key])
        return token, key

    def revoke(self, key_id: str) -> bool:
        """Whether there was such a key; it opens nothing any more."""
        keys = self.load()
        left = [key for key in keys if key.id != key_id]
        if len(left) < len(keys):
            self._write(left)
        return len(left) < len(keys)

    def _write(self, keys: Sequence[ApiKey]) -> None:
        text = msgspec.json.format(msgspec.json.encode(keys), indent=2)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(text + b"\n")
        temporary.replace(self.path)

    def _refresh(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._keys, self._seen = {}, None
            return
        seen = (status.st_mtime_ns, status.st_ino)
        if seen == self._seen:
            return
        try:
            keys = msgspec.json.decode(self.path.read_bytes(), type=list[ApiKey])
        except msgspec.MsgspecError as error:
            raise InvalidOptions(f"{self.path}: {error}") from error
        self._keys, self._seen = {key.sha256: key for key in keys}, seen


def hash_key(token: str) -> str:
    """What is kept of a key: it is long and random, so that no slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether this names the machine itself, as an address or in a `Host` header."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
