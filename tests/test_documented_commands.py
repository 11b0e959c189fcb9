"""Every `flowstate ...` in the pages on serving, and in what `serve/` holds, is a command that exists, with its options."""

import re
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest
import typer.main

from flowstate_local.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "docs" / name for name in ("serving.md", "scaling.md", "backup.md")),
    *(path for path in (ROOT / "serve").rglob("*") if path.is_file() and path.suffix != ".json"),
]
_CALL = re.compile(r"(?<![\w./:=-])(?:/opt/flowstate/bin/)?flowstate((?: +[^\s`|>#;)]+)+)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#([\w-]+))?\)")


def commands() -> Any:
    """The whole tree, as Typer's own copy of click holds it."""
    return typer.main.get_command(app)


def calls(page: Path) -> Iterator[list[str]]:
    """The words after `flowstate`, where a command follows; else it is an image, a user, a host."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for found in _CALL.finditer(text):
        words = list(dropwhile(lambda word: word == "flowstate", found[1].split()))
        if words and words[0] in commands().commands:
            yield words


def check(words: list[str]) -> None:
    command, rest = commands(), list(words)
    while hasattr(command, "commands"):
        assert rest, f"{words}: which command?"
        assert rest[0] in command.commands, words
        command = command.commands[rest.pop(0)]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in rest:
        if word.startswith("-") and word.strip("-"):
            assert word.split("=")[0] in known | {"--help"}, f"{words}: {word}"


@pytest.mark.parametrize("page", PAGES[:3], ids=lambda path: path.name)
def test_what_looks_like_a_command_is_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`|\$ )flowstate ([a-z][\w-]*)", text, re.MULTILINE)
    assert named
    assert set(named) <= set(commands().commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_and_options_exist(page: Path) -> None:
    for words in calls(page):
        check(words)


def test_the_check_finds_what_is_wrong() -> None:
    check(["memory", "backup", "DIR", "--no-verify"])
    for wrong in (["memory", "restore"], ["serve", "--upstreams", "URL"], ["memory"]):
        with pytest.raises(AssertionError):
            check(wrong)


def test_the_pages_name_commands() -> None:
    named = {" ".join(words[:2]) for page in PAGES for words in calls(page)}
    assert {"memory backup", "memory verify", "memory export", "serve --upstream"} <= named


@pytest.mark.parametrize("page", PAGES[:3], ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path = (page.parent / target).resolve()
        assert path.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in headings}


@pytest.mark.parametrize("page", PAGES[:3], ids=lambda path: path.name)
def test_files_named_in_commands_exist(page: Path) -> None:
    for name in re.findall(r"\bserve/[\w./-]*\w", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name
