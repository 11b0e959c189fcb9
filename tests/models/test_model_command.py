import json
import re
from pathlib import Path

import pytest
import typer
from tiny import Served, TinyModel
from typer.testing import CliRunner

from flowstate_local.cli import report
from flowstate_local.cli.model import app
from flowstate_local.errors import (
    EngineUnavailable,
    FlowStateError,
    GrammarError,
    HashMismatch,
    StoreFull,
    ToolError,
    UnknownModel,
)
from flowstate_local.models.catalogue import CatalogueEntry

runner = CliRunner()


def test_list_shows_names_sizes_and_what_is_cached(
    tiny: CatalogueEntry, tiny_model: TinyModel, server: Served
) -> None:
    server.offer_model(tiny_model.content)
    fetched = runner.invoke(app, ["fetch", "tiny-llama", "--precision", "int8"])
    assert fetched.exit_code == 0, fetched.stderr
    shown = runner.invoke(app, ["list"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0
    assert re.search(r"tiny-llama +0M +[\d.]+ kB +Apache-2.0 +int8", shown.stdout)
    assert re.search(r"smollm2-135m-instruct +135M +98.4 MB +Apache-2.0 +-", shown.stdout)
    wide = runner.invoke(app, ["list"], env={"COLUMNS": "200"})
    assert "made by the tests" in wide.stdout


def test_list_as_json_is_one_value(tiny: CatalogueEntry) -> None:
    models = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert {"name": "tiny-llama", "parameters": 100_000, "cached": []}.items() <= models[0].items()


def test_fetch_prints_the_folder_and_says_each_stage_on_stderr(
    tiny: CatalogueEntry, tiny_model: TinyModel, server: Served
) -> None:
    server.offer_model(tiny_model.content)
    fetched = runner.invoke(app, ["fetch", "tiny-llama"])
    assert fetched.exit_code == 0, fetched.stderr
    folder = Path(fetched.stdout.strip())
    assert (folder / "config.json").is_file()
    for words in ("downloading", "checking every byte", "converting"):
        assert words in fetched.stderr
    assert runner.invoke(app, ["path", "tiny-llama"]).stdout.strip() == str(folder)
    as_json = runner.invoke(app, ["path", "tiny-llama", "--json"])
    assert json.loads(as_json.stdout) == {"path": str(folder)}


def test_path_of_what_is_not_here_says_how_to_get_it(tiny: CatalogueEntry) -> None:
    result = runner.invoke(app, ["path", "tiny-llama"])
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "error: tiny-llama is not in the cache as bf16" in result.stderr
    assert "hint: Run: flowstate model fetch tiny-llama --precision bf16" in result.stderr


def test_an_unknown_name_is_a_usage_error_with_suggestions(cache: Path) -> None:
    result = runner.invoke(app, ["fetch", "smollm"])
    assert result.exit_code == 2
    assert "did you mean smollm2-135m-instruct" in result.stderr


def test_no_network_is_code_3_and_one_json_object(tiny: CatalogueEntry) -> None:
    result = runner.invoke(app, ["fetch", "tiny-llama", "--json"])
    assert result.exit_code == 3
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "SourceUnavailable"
    assert error["retryable"] is True
    assert "sources" in error["hint"]
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["list", "fetch", "path"])
def test_help_brings_an_example(command: str) -> None:
    shown = runner.invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert f"flowstate model {command}" in re.sub(r"\x1b\[[\d;]*m", "", shown.stdout)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownModel("who"), 2),
        (EngineUnavailable("off"), 3),
        (HashMismatch("bytes"), 3),
        (GrammarError("schema"), 3),
        (StoreFull("disk"), 4),
        (ToolError("tool"), 5),
        (FlowStateError("new branch"), 1),
    ],
)
def test_each_branch_of_the_tree_has_its_code(
    error: FlowStateError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, report.reported():
        raise error
    assert ended.value.exit_code == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {error}\n")
    assert (f"hint: {error.hint}" in printed.err) == bool(error.hint)


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, report.reported():
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), report.reported():
        _ = 1 / 0
