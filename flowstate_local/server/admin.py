"""/v1/me, /v1/keys, /v1/tenants and the shares of a space: who may use what."""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.chat import Authorization
from flowstate_local.server.memory import own_space
from flowstate_local.server.service import Service
from flowstate_local.server.spaces import SpaceRef
from flowstate_local.server.tenants import Caller, KeyInfo, Quota, Scope, Tenant

router = APIRouter(prefix="/v1", tags=["tenants"])

YEARS = 36_500
TenantId = Annotated[str, Field(max_length=64)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class QuotaBody(_Body):
    """What a tenant may use; null is no bound."""

    requests_per_minute: Annotated[int, Field(ge=0, le=10**9)] | None = None
    tokens_per_day: Annotated[int, Field(ge=0, le=10**15)] | None = None
    max_bytes: Annotated[int, Field(ge=0, le=10**15)] | None = None

    @property
    def quota(self) -> Quota:
        """As the tenants keep it."""
        return Quota(self.requests_per_minute, self.tokens_per_day, self.max_bytes)


class NewTenant(_Body):
    """A tenant to be."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    quota: QuotaBody = QuotaBody()


class TenantInfo(BaseModel):
    """One tenant."""

    id: str
    name: str
    quota: QuotaBody
    is_operator: bool
    tokens_today: int


class CreatedTenant(TenantInfo):
    """With the first key of its own, which is told only now."""

    admin_key: str


class Me(BaseModel):
    """Who the key belongs to."""

    tenant: TenantInfo
    """Its id is what others need to share a space."""
    key: str
    """The id of the key, not the key."""
    scope: Scope


class NewKey(_Body):
    """A key to be."""

    scope: Scope = "write"
    days: Annotated[float, Field(gt=0, le=YEARS)] | None = None
    """Until it expires; null is never."""


class Rotation(_Body):
    """How a key is replaced."""

    grace_s: Annotated[float, Field(ge=0, le=YEARS * 86_400)] = 0.0
    """Seconds for which the old one stays good."""


class IssuedKey(BaseModel):
    """A key, told only now."""

    key: str


class KeyDetails(BaseModel):
    """What is kept of a key: not the key."""

    id: str
    scope: Scope
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    @classmethod
    def of(cls, info: KeyInfo) -> "KeyDetails":
        """From what the tenants keep."""
        return cls(
            id=info.id,
            scope=info.scope,
            created_at=info.created_at,
            expires_at=info.expires_at,
            revoked_at=info.revoked_at,
        )


class ShareBody(_Body):
    """How a space is shared."""

    may_write: bool = False


class Share(BaseModel):
    """Somebody who may use a space of yours."""

    guest: str
    """Id of the tenant."""
    name: str
    may_write: bool


class SharedSpace(BaseModel):
    """A space of somebody else that you may use, under this name."""

    space: str
    may_write: bool


@router.get("/me", summary="Who the key belongs to")
async def me(request: Request, authorization: Authorization = None) -> Me:
    """Your tenant, its quota, what it used today, and the scope of the key."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "read")
    return Me(tenant=_info(service, caller.tenant), key=caller.key, scope=caller.scope)


@router.get("/shared", summary="What others share with you")
async def shared(request: Request, authorization: Authorization = None) -> list[SharedSpace]:
    """Use these names wherever a space is asked for."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "read")
    found = service.tenants.shared_spaces(caller.tenant)
    return [SharedSpace(space=space, may_write=may_write) for space, may_write in found]


# --- keys -------------------------------------------------------------------------------------------------------


@router.get("/keys", summary="Your keys")
async def keys(request: Request, authorization: Authorization = None) -> list[KeyDetails]:
    """Also those that are revoked or expired."""
    service, caller = _admin(request, authorization)
    return [KeyDetails.of(info) for info in service.tenants.keys(caller.tenant)]


@router.post("/keys", summary="A new key", status_code=201)
async def issue(body: NewKey, request: Request, authorization: Authorization = None) -> IssuedKey:
    """Only a hash of it is kept."""
    service, caller = _admin(request, authorization)
    return IssuedKey(key=service.tenants.issue(caller.tenant, body.scope, days=body.days))


@router.post("/keys/{key}/rotate", summary="Replace a key", status_code=201)
async def rotate(
    key: str, body: Rotation, request: Request, authorization: Authorization = None
) -> IssuedKey:
    """A new key of the same scope; the old one ends after the grace."""
    service, caller = _admin(request, authorization)
    fresh = service.tenants.rotate(key, caller.tenant, grace_s=body.grace_s)
    if fresh is None:
        raise _unknown("key", key)
    return IssuedKey(key=fresh)


@router.delete("/keys/{key}", summary="Revoke a key", status_code=204)
async def revoke(key: str, request: Request, authorization: Authorization = None) -> None:
    """From now on it opens nothing."""
    service, caller = _admin(request, authorization)
    if not service.tenants.revoke(key, caller.tenant):
        raise _unknown("key", key)


# --- shares -----------------------------------------------------------------------------------------------------


@router.get("/spaces/{space}/shares", summary="Who may use a space")
async def shares(space: str, request: Request, authorization: Authorization = None) -> list[Share]:
    """Beside you."""
    service, ref = _own_space(space, request, authorization)
    found = service.tenants.shares(ref.owner, ref.name)
    return [Share(guest=guest.id, name=guest.name, may_write=may_write) for guest, may_write in found]


@router.put("/spaces/{space}/shares/{guest}", summary="Share a space", status_code=204)
async def share(
    space: str, guest: str, body: ShareBody, request: Request, authorization: Authorization = None
) -> None:
    """With the tenant of that id, which it finds at /v1/me. It uses the space as YOUR_NAME~SPACE."""
    service, ref = _own_space(space, request, authorization)
    tenant = service.tenants.get(guest)
    if tenant is None or tenant.id == ref.owner.id:
        raise _unknown("tenant", guest)
    service.tenants.share(ref.owner, ref.name, tenant, may_write=body.may_write)


@router.delete("/spaces/{space}/shares/{guest}", summary="Share a space no longer", status_code=204)
async def unshare(space: str, guest: str, request: Request, authorization: Authorization = None) -> None:
    """From the next request on."""
    service, ref = _own_space(space, request, authorization)
    tenant = service.tenants.get(guest)
    if tenant is None or not service.tenants.unshare(ref.owner, ref.name, tenant):
        raise _unknown("tenant", guest)


# --- tenants, for the operator ------------------------------------------------------------------------------------


@router.get("/tenants", summary="All tenants (operator)")
async def tenants(request: Request, authorization: Authorization = None) -> list[TenantInfo]:
    """By name."""
    service = _operator(request, authorization)
    return [_info(service, tenant) for tenant in service.tenants.all()]


@router.post("/tenants", summary="A new tenant (operator)", status_code=201)
async def create(body: NewTenant, request: Request, authorization: Authorization = None) -> CreatedTenant:
    """With an admin key of its own."""
    service = _operator(request, authorization)
    tenant = service.tenants.create(body.name, body.quota.quota)
    info = _info(service, tenant).model_dump()
    return CreatedTenant(**info, admin_key=service.tenants.issue(tenant, "admin"))


@router.put("/tenants/{tenant}/quota", summary="Another quota (operator)")
async def set_quota(
    tenant: str, body: QuotaBody, request: Request, authorization: Authorization = None
) -> TenantInfo:
    """From the next request on."""
    service = _operator(request, authorization)
    return _info(service, service.tenants.set_quota(_tenant(service, tenant), body.quota))


@router.delete("/tenants/{tenant}", summary="Erase a tenant (operator)", status_code=204)
async def delete(tenant: str, request: Request, authorization: Authorization = None) -> None:
    """With its keys, shares and spaces. Nothing of it can be brought back."""
    service = _operator(request, authorization)
    gone = _tenant(service, tenant)
    if gone.is_operator:
        raise ApiError(400, "the operator can't be erased", code="operator")
    await service.erase_tenant(gone)


# --- inside -----------------------------------------------------------------------------------------------------


def _admin(request: Request, authorization: str | None) -> tuple[Service, Caller]:
    service: Service = request.app.state.service
    return service, service.caller(authorization, "admin")


def _operator(request: Request, authorization: str | None) -> Service:
    service, caller = _admin(request, authorization)
    if not caller.tenant.is_operator:
        raise ApiError(403, "only the operator manages tenants", type="permission_error", code="not_operator")
    return service


def _own_space(space: str, request: Request, authorization: str | None) -> tuple[Service, SpaceRef]:
    """A space that the caller owns: what is shared with it, it can't share on."""
    service, caller = _admin(request, authorization)
    return service, own_space(service, caller, space, "shares", write=True)


def _tenant(service: Service, tenant_id: str) -> Tenant:
    tenant = service.tenants.get(tenant_id)
    if tenant is None:
        raise _unknown("tenant", tenant_id)
    return tenant


def _info(service: Service, tenant: Tenant) -> TenantInfo:
    quota = tenant.quota
    return TenantInfo(
        id=tenant.id,
        name=tenant.name,
        quota=QuotaBody(
            requests_per_minute=quota.requests_per_minute,
            tokens_per_day=quota.tokens_per_day,
            max_bytes=quota.max_bytes,
        ),
        is_operator=tenant.is_operator,
        tokens_today=service.tenants.spent_today(tenant),
    )


def _unknown(what: str, said: str) -> ApiError:
    return ApiError(404, f"there is no {what} {said!r}", code=f"{what}_not_found")
