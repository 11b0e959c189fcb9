"""GET /inspect: one page that looks into memories. It holds no data; its scripts ask /v1/spaces with the reader's key.

What models and tools wrote is shown on this page, so the browser is told to run nothing but the files beside it.
"""

import hashlib
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import RedirectResponse

from flowstate_local.server.api_errors import ApiError

router = APIRouter(tags=["inspector"], include_in_schema=False)

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A new release must not meet the scripts of the last one: browsers ask, and mostly hear 304.
    "Cache-Control": "no-cache",
}
_FILES = {
    file.name: file.read_bytes()
    for file in files("flowstate_local.server").joinpath("inspector_page").iterdir()
    if file.name.rpartition(".")[2] in MEDIA_TYPES
}
"""The whole page, read once: a path of a request never becomes a path on the disk."""

NoneMatch = Annotated[str | None, Header(alias="If-None-Match")]


@router.get("/inspect")
async def page(none_match: NoneMatch = None) -> Response:
    """The page itself, for everybody."""
    return _file("index.html", none_match)


@router.get("/inspect/")
async def slash() -> RedirectResponse:
    """The page's links are relative to the address without the slash."""
    return RedirectResponse("../inspect")


@router.get("/inspect/{name}")
async def asset(name: str, none_match: NoneMatch = None) -> Response:
    """Its scripts, its style, its icon."""
    if name not in _FILES:
        raise ApiError(404, f"the inspector has no file {name!r}", code="not_found")
    return _file(name, none_match)


def _file(name: str, none_match: str | None) -> Response:
    content = _FILES[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = HEADERS | {"ETag": tag}
    if none_match == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)
