"""The commands of `flowstate bench`, each in a file of its own."""

import typer

from flowstate_local.cli.bench import examining, judging, listing, replaying, reporting, running

app = typer.Typer(
    name="bench",
    help="Compare FlowState with other memories, on the same model, with every token accounted for.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("list", epilog=listing.EXAMPLES)(listing.list_)
app.command("run", epilog=running.EXAMPLES)(running.run)
app.command("report", epilog=reporting.EXAMPLES)(reporting.report)
app.command("replay", epilog=replaying.EXAMPLES)(replaying.replay)
app.command("judge", epilog=judging.EXAMPLES)(judging.judge)
app.command("doctor", epilog=examining.EXAMPLES)(examining.doctor)
