"""`flowstate bench doctor`: what each benchmark still needs, and how to get it."""

import importlib.util
from dataclasses import asdict

import typer
from rich.console import Console

from flowstate_local.cli.bench.extra import evaluation_extra
from flowstate_local.cli.doctor import table_of
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json
from flowstate_local.doctor import Check

EXAMPLES = """Examples:

`flowstate bench doctor`

Exit codes: 0 everything is there (Dependence needs nothing), 1 something is missing.
"""
_PACKAGES = {"bm25s": "bm25, zipact_bm25", "jinja2": "the report", "numpy": "intervals"}


def doctor(as_json: Json = False) -> None:
    """Say what is missing for the benchmarks."""
    with reported(as_json=as_json):
        checks = _packages()
        if all(check.level == "ok" for check in checks):
            with evaluation_extra():
                from flowstate_local.bench.doctor import examine
            checks += examine()
        if as_json:
            write_json([asdict(check) for check in checks])
        else:
            Console().print(table_of(checks), highlight=False)
        if any(check.level == "fault" for check in checks):
            raise typer.Exit(1)


def _packages() -> list[Check]:
    return [
        Check(name, "ok", f"for {use}")
        if importlib.util.find_spec(name)
        else Check(
            name, "fault", f"not installed; needed for {use}", "pip install 'flowstate-local[evaluation]'"
        )
        for name, use in _PACKAGES.items()
    ]
