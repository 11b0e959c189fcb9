"""Tenants and their keys: who may do what, how much, and until when. Keys are kept as hashes only.

A key is 256 random bits, so a plain SHA-256 is enough: there is nothing to guess that a slow hash would protect.
"""

import hashlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from flowstate_local.errors import StoreError, UsageError

Scope = Literal["read", "write", "admin"]
"""Each holds those before it."""
PREFIX = "fs-"
SHARED = "~"
"""Between the name of an owner and that of a space that is shared: "OWNER~SPACE". No name of a tenant holds it, nor
one of a space that a server keeps."""
_SCHEMA = """
create table if not exists tenants (
  id text primary key, name text not null unique, created_at real not null,
  requests_per_minute integer, tokens_per_day integer, max_bytes integer, is_operator integer not null);
create table if not exists keys (
  digest text primary key, id text not null unique, tenant text not null references tenants(id), scope text not null,
  created_at real not null, expires_at real, revoked_at real);
create table if not exists shares (
  owner text not null references tenants(id), space text not null, guest text not null references tenants(id),
  may_write integer not null, primary key (owner, space, guest));
create table if not exists spent (
  tenant text not null references tenants(id), day integer not null, tokens integer not null, primary key (tenant, day));
"""


@dataclass(frozen=True)
class Quota:
    """What a tenant may use; None: no bound."""

    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    """Prompt and generated; what the prefix cache served counts as well."""
    max_bytes: int | None = None
    """Of its spaces on disk."""


@dataclass(frozen=True)
class Tenant:
    """Who owns spaces."""

    id: str
    """Sixteen hex digits; part of the names of its spaces in the store."""
    name: str
    quota: Quota = Quota()
    is_operator: bool = False
    """Whether its admin keys manage the other tenants."""


@dataclass(frozen=True)
class Caller:
    """Who sent a request, as its key says."""

    tenant: Tenant
    key: str
    """Id of the key, not the key."""
    scope: Scope

    def may(self, scope: Scope) -> bool:
        """Whether the key's scope holds that one."""
        order = get_args(Scope)
        return order.index(self.scope) >= order.index(scope)


@dataclass(frozen=True)
class KeyInfo:
    """What is kept of a key."""

    id: str
    tenant: str
    scope: Scope
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def is_good(self, now: float) -> bool:
        """Whether it opens anything at that time."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class Tenants:
    """Tenants in a SQLite file, which any number of threads and processes may use.

    Args:
        path: the file; made if it isn't there.
        clock: seconds since the epoch.

    Raises:
        StoreError: the file can't be used.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Before SQLite makes it: the log beside it gets the same permissions.
            path.touch(mode=0o600)
            path.chmod(0o600)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
            self._db.executescript(
                f"pragma journal_mode=wal; pragma synchronous=normal; pragma foreign_keys=on; {_SCHEMA}"
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path} can't hold tenants: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # --- tenants ------------------------------------------------------------------------------------------

    def create(self, name: str, quota: Quota | None = None, *, is_operator: bool = False) -> Tenant:
        """A new tenant.

        Raises:
            UsageError: the name is empty, too long, taken, or holds what separates it from that of a space.
        """
        if not name.strip() or len(name) > 100:
            raise UsageError("a tenant needs a name of 1 to 100 characters")
        if SHARED in name or "/" in name or not name.isprintable():
            raise UsageError(f"the name of a tenant can't hold {SHARED!r}, '/' or control characters")
        tenant = Tenant(secrets.token_hex(8), name, quota or Quota(), is_operator)
        row = (tenant.id, name, self._clock(), *astuple(tenant.quota), int(is_operator))
        with self._transaction() as db:
            try:
                db.execute("insert into tenants values (?, ?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise UsageError(f"there is a tenant {name!r} already") from None
        return tenant

    def set_quota(self, tenant: Tenant, quota: Quota) -> Tenant:
        """The tenant with another quota, from now on."""
        query = "update tenants set requests_per_minute = ?, tokens_per_day = ?, max_bytes = ? where id = ?"
        with self._transaction() as db:
            db.execute(query, (*astuple(quota), tenant.id))
        return replace(tenant, quota=quota)

    def delete(self, tenant: Tenant) -> None:
        """Forget a tenant with its keys, shares and counts. Its spaces are the store's to erase."""
        with self._transaction() as db:
            db.execute("delete from keys where tenant = ?", (tenant.id,))
            db.execute("delete from spent where tenant = ?", (tenant.id,))
            db.execute("delete from shares where owner = ? or guest = ?", (tenant.id, tenant.id))
            db.execute("delete from tenants where id = ?", (tenant.id,))

    def all(self) -> list[Tenant]:
        """Every tenant, by name."""
        with self._reading() as db:
            return [_tenant(row) for row in db.execute("select * from tenants order by name")]

    def get(self, tenant_id: str) -> Tenant | None:
        """A tenant by its id."""
        with self._reading() as db:
            row = db.execute("select * from tenants where id = ?", (tenant_id,)).fetchone()
        return None if row is None else _tenant(row)

    # --- keys ---------------------------------------------------------------------------------------------

    def issue(self, tenant: Tenant, scope: Scope = "write", *, days: float | None = None) -> str:
        """A new key; it is told once and never again."""
        if scope not in get_args(Scope):
            raise UsageError(f"unknown scope {scope!r}", hint="Use read, write or admin.")
        key, now = PREFIX + secrets.token_urlsafe(32), self._clock()
        expires_at = now + days * 86_400 if days else None
        row = (_digest(key), secrets.token_hex(6), tenant.id, scope, now, expires_at)
        with self._transaction() as db:
            db.execute("insert into keys values (?, ?, ?, ?, ?, ?, null)", row)
        return key

    def rotate(self, key_id: str, tenant: Tenant, *, grace_s: float = 0.0) -> str | None:
        """A new key of the same scope in place of an old one, which is good for `grace_s` more seconds.

        None if the tenant has no such key that is good.
        """
        old = next((info for info in self.keys(tenant) if info.id == key_id), None)
        if old is None or not old.is_good(self._clock()):
            return None
        fresh = self.issue(tenant, old.scope)
        with self._transaction() as db:
            db.execute(
                "update keys set expires_at = min(coalesce(expires_at, 1e300), ?) where id = ?",
                (self._clock() + grace_s, key_id),
            )
        return fresh

    def revoke(self, key_id: str, tenant: Tenant) -> bool:
        """End a key by its id; whether the tenant had such a key."""
        with self._transaction() as db:
            done = db.execute(
                "update keys set revoked_at = ? where id = ? and tenant = ? and revoked_at is null",
                (self._clock(), key_id, tenant.id),
            )
            return done.rowcount == 1

    def keys(self, tenant: Tenant) -> list[KeyInfo]:
        """What is known of the keys of a tenant, the oldest first."""
        query = "select id, tenant, scope, created_at, expires_at, revoked_at from keys where tenant = ? order by created_at"
        with self._reading() as db:
            return [KeyInfo(*row) for row in db.execute(query, (tenant.id,))]

    def caller(self, key: str) -> Caller | None:
        """Whose key that is; None if it's unknown, revoked or expired, which all look the same."""
        query = (
            "select k.id, k.scope, k.expires_at, k.revoked_at, t.* from keys k join tenants t on t.id = k.tenant"
            " where k.digest = ?"
        )
        with self._reading() as db:
            row = db.execute(query, (_digest(key),)).fetchone()
        if row is None or row[3] is not None or (row[2] is not None and row[2] <= self._clock()):
            return None
        return Caller(_tenant(row[4:]), row[0], row[1])

    # --- shares -------------------------------------------------------------------------------------------

    def share(self, owner: Tenant, space: str, guest: Tenant, *, may_write: bool) -> None:
        """Let another tenant read a space, or write to it too."""
        with self._transaction() as db:
            db.execute(
                "insert or replace into shares values (?, ?, ?, ?)",
                (owner.id, space, guest.id, int(may_write)),
            )

    def unshare(self, owner: Tenant, space: str, guest: Tenant) -> bool:
        """Take that back; whether there was anything."""
        with self._transaction() as db:
            done = db.execute(
                "delete from shares where owner = ? and space = ? and guest = ?", (owner.id, space, guest.id)
            )
            return done.rowcount == 1

    def shared_with(self, guest: Tenant, owner_name: str, space: str) -> tuple[Tenant, bool] | None:
        """The owner, and whether the guest may write; None if nothing of the kind is shared with it."""
        query = (
            "select s.may_write, t.* from shares s join tenants t on t.id = s.owner"
            " where t.name = ? and s.space = ? and s.guest = ?"
        )
        with self._reading() as db:
            row = db.execute(query, (owner_name, space, guest.id)).fetchone()
        return None if row is None else (_tenant(row[1:]), bool(row[0]))

    def shares(self, owner: Tenant, space: str) -> list[tuple[Tenant, bool]]:
        """Who may use a space beside its owner, and whether they may write."""
        query = (
            "select s.may_write, t.* from shares s join tenants t on t.id = s.guest"
            " where s.owner = ? and s.space = ? order by t.name"
        )
        with self._reading() as db:
            return [(_tenant(row[1:]), bool(row[0])) for row in db.execute(query, (owner.id, space))]

    def shared_spaces(self, guest: Tenant) -> list[tuple[str, bool]]:
        """What is shared with a tenant, as "OWNER~SPACE", and whether it may write there."""
        query = (
            "select t.name, s.space, s.may_write from shares s join tenants t on t.id = s.owner"
            " where s.guest = ? order by t.name, s.space"
        )
        with self._reading() as db:
            return [
                (f"{owner}{SHARED}{space}", bool(may)) for owner, space, may in db.execute(query, (guest.id,))
            ]

    # --- what was spent -----------------------------------------------------------------------------------

    def spend(self, tenant: Tenant, tokens: int) -> None:
        """Count tokens against today's quota."""
        with self._transaction() as db:
            db.execute(
                "insert into spent values (?, ?, ?) on conflict (tenant, day) do update set tokens = tokens + ?",
                (tenant.id, self._day(), tokens, tokens),
            )

    def spent_today(self, tenant: Tenant) -> int:
        """Tokens of this day (UTC)."""
        with self._reading() as db:
            row = db.execute(
                "select tokens from spent where tenant = ? and day = ?", (tenant.id, self._day())
            ).fetchone()
        return int(row[0]) if row else 0

    def _day(self) -> int:
        return int(self._clock() // 86_400)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise StoreError(f"the tenants can't be read: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("begin immediate")
                yield self._db
                self._db.execute("commit")
            except sqlite3.Error as error:
                self._roll_back()
                raise StoreError(f"the tenants can't be written: {error}") from error
            except UsageError:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")


def _tenant(row: tuple[str, str, float, int | None, int | None, int | None, int]) -> Tenant:
    return Tenant(row[0], row[1], Quota(*row[3:6]), bool(row[6]))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()
