"""`flowstate memory backup`: a copy of the whole store, and of the tenants beside it, while others write."""

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flowstate_local.cli.memory import faults_of, show_faults
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json, StorePath, data_home, tenants_file
from flowstate_local.errors import StoreError, UsageError
from flowstate_local.stores.lmdb import LmdbStore

EXAMPLES = (
    "Exit codes: 0 whole, 1 the copy has faults. Example: `flowstate memory backup /backups/monday`\n\n"
    "To restore, put what is in the folder where the store was. docs/backup.md shows a whole drill."
)


def backup(
    folder: Annotated[Path, typer.Argument(help="A new folder for the copy.")],
    store: StorePath = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read the copy back and recompute every hash.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Copy the store and the tenants of its server. A server may go on; what it commits meanwhile isn't in the copy."""
    with reported(as_json=as_json):
        source = store or data_home()
        if folder.exists():
            raise UsageError(f"{folder} exists already", hint="Name a folder that does not exist yet.")
        size_bytes = _copied(source, folder)
        with LmdbStore.open(folder / source.name, create=False, readonly=True) as copy:
            spaces = copy.spaces()
            faults = faults_of(copy, spaces) if verify else []
        if as_json:
            told = {"folder": str(folder), "spaces": len(spaces), "size_bytes": size_bytes}
            write_json({**told, "verified": verify, "faults": [asdict(fault) for fault in faults]})
        else:
            show_faults(faults)
            state = f"{len(faults)} faults" if verify else "not verified"
            counted = f"{len(spaces)} space{'s' * (len(spaces) != 1)}, {size_bytes / 2**20:.1f} MiB, {state}"
            Console().print(f"{folder}: {counted}", highlight=False, markup=False, soft_wrap=True)
        if faults:
            raise typer.Exit(1)


def _copied(source: Path, folder: Path) -> int:
    """Make the copy beside `folder`, and give it that name when all of it is on disk. Its size in bytes."""
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        with LmdbStore.open(source, create=False, readonly=True) as opened:
            partial.mkdir(parents=True, mode=0o700)
            opened.backup(partial / source.name)
        # After the memories: a tenant without a space is harmless, a space without its tenant can't be reached.
        _copy_tenants(tenants_file(source), tenants_file(partial / source.name))
        size_bytes = sum(_synced(path) for path in (*partial.rglob("*"), partial))
        partial.rename(folder)
        _synced(folder.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"can't copy {source} to {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return size_bytes


def _copy_tenants(source: Path, target: Path) -> None:
    """By SQLite's own backup: a plain copy of the file would miss what is still in its write-ahead log."""
    if not source.exists():
        return
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as tenants,
        closing(sqlite3.connect(target)) as copy,
    ):
        tenants.backup(copy)


def _synced(path: Path) -> int:
    """Wait until a file or folder is on disk; its size, folders for nothing."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return 0 if path.is_dir() else os.fstat(handle).st_size
    finally:
        os.close(handle)
