"""`flowstate`: the command line. Each command lives in its own file; this one only lists them."""

import typer

from flowstate_local.cli import (
    batch,
    chat,
    demo,
    doctor,
    mcp,
    memory,
    memory_backup,
    memory_changes,
    model,
    run,
    serve,
    task,
)
from flowstate_local.cli.bench.app import app as bench_app

app = typer.Typer(
    name="flowstate",
    help="An LLM agent whose execution state is its memory, on your own machine.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("chat", epilog=chat.EXAMPLES)(chat.chat)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("batch", epilog=batch.EXAMPLES)(batch.batch)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
memory.app.command("import", epilog=memory_changes.IMPORT_EXAMPLES)(memory_changes.import_space)
memory.app.command("erase", epilog=memory_changes.ERASE_EXAMPLES)(memory_changes.erase_parts)
memory.app.command("backup", epilog=memory_backup.EXAMPLES)(memory_backup.backup)
app.command("mcp", epilog=mcp.EXAMPLES)(mcp.mcp)
app.add_typer(memory.app)
app.add_typer(model.app)
app.add_typer(task.app)
app.add_typer(bench_app)


def main() -> None:
    """Entry point of the `flowstate` script."""
    app()
