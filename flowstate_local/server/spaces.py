"""Whose a space is: names as callers say them, and as the store keeps them."""

from dataclasses import dataclass

from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.tenants import SHARED, Caller, Tenant, Tenants
from flowstate_local.stores.base import MAX_SPACE_BYTES, Store, check_space_name

JOIN = "."
"""Between the id of a tenant and the name of its space; ids have a fixed length, so no two pairs make one name."""
DEFAULT_SPACE = "default"


@dataclass(frozen=True)
class SpaceRef:
    """A space that its caller may use."""

    owner: Tenant
    name: str
    """As the owner calls it."""

    @property
    def stored(self) -> str:
        """Its name in the store."""
        return f"{self.owner.id}{JOIN}{self.name}"


def find_space(tenants: Tenants, caller: Caller, name: str, *, write: bool) -> SpaceRef:
    """A space of the caller, or one that is shared with it, as "OWNER~SPACE".

    What belongs to others and what doesn't exist look the same.

    Raises:
        ApiError: 404 where it may not be used.
        BadSpaceName: no space can be called that.
    """
    owner, is_shared, rest = name.partition(SHARED)
    if is_shared:
        shared = tenants.shared_with(caller.tenant, owner, rest)
        if shared is None or (write and not shared[1]):
            raise unknown_space(name)
        return SpaceRef(shared[0], rest)
    check_space_name(name)
    ref = SpaceRef(caller.tenant, name)
    if len(ref.stored.encode()) > MAX_SPACE_BYTES:
        most = MAX_SPACE_BYTES - len(f"{caller.tenant.id}{JOIN}")
        raise ApiError(400, f"the name of a space may have {most} bytes", code="bad_space_name")
    return ref


def spaces_of(store: Store, tenant: Tenant) -> list[SpaceRef]:
    """All spaces that a tenant owns, by name."""
    prefix = f"{tenant.id}{JOIN}"
    return [SpaceRef(tenant, name.removeprefix(prefix)) for name in store.spaces() if name.startswith(prefix)]


def unknown_space(name: str) -> ApiError:
    """For a space that isn't there, or isn't the caller's."""
    return ApiError(404, f"there is no space {name!r}", code="space_not_found")
