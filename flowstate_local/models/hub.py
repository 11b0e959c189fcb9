"""Weights on the model hub: one plain file over HTTPS, resumed where an earlier try broke off."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx

from flowstate_local.errors import SourceUnavailable, UnknownModel
from flowstate_local.models.catalogue import HubFile

_TIMEOUT = httpx.Timeout(10.0, connect=4.0)
"""Seconds. A machine without network must hear so quickly; a slow hub may take its time once it has answered."""

_TRUE = {"1", "ON", "YES", "TRUE"}


def is_offline() -> bool:
    """Whether the user told hub libraries to stay off the network."""
    return any(
        os.environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def download(source: HubFile, part: Path) -> Iterator[int]:
    """Append what is missing to `part`; after each piece, say how many bytes of the file are there.

    Raises:
        SourceUnavailable: offline by setting, not reachable, or no such file; `part` can be resumed later.
    """
    if is_offline():
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    url = f"{_endpoint()}/{source.repo}/resolve/{source.revision}/{source.path}"
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with httpx.stream("GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                # All of it is there already, or it isn't this file; the hash will tell.
                yield have
                return
            response.raise_for_status()
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
            done = have if resumed else 0
            with part.open("ab" if resumed else "wb") as out:
                # No chunk size: what arrived before a break must be on disk, not in a buffer.
                for chunk in response.iter_bytes():
                    out.write(chunk)
                    done += len(chunk)
                    yield done
    except httpx.HTTPError as error:
        raise SourceUnavailable(_reason(error, url)) from error


def _reason(error: httpx.HTTPError, url: str) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"{url} answered {error.response.status_code}"
    return f"{httpx.URL(url).host} could not be reached: {error or type(error).__name__}"


def resolve(repo: str) -> Path | str:
    """A hub id as an engine can use it: the folder in the hub's local cache, or the id itself when the hub answers.

    Raises:
        UnknownModel: the hub has no public repository of that name.
        SourceUnavailable: not in the local cache, and the hub can't be reached.
    """
    cached = _cached_folder(repo)
    if cached:
        return cached
    if is_offline():
        raise SourceUnavailable(f"{repo} is not in the hub's local cache and HF_HUB_OFFLINE is set")
    url = f"{_endpoint()}/{repo}/resolve/main/config.json"
    try:
        status = httpx.head(url, timeout=_TIMEOUT, follow_redirects=True).status_code
    except httpx.HTTPError as error:
        raise SourceUnavailable(f"{repo} is not in the hub's local cache; {_reason(error, url)}") from error
    # Gated repositories answer 401 or 403; whether the engine has a token for them is not asked here.
    if status == httpx.codes.NOT_FOUND:
        raise UnknownModel(f"the hub has no model {repo}")
    return repo


def _cached_folder(repo: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    config = try_to_load_from_cache(repo, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    # A download that broke off leaves the config without the weights.
    return folder if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) else None
