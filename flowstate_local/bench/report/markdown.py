"""The report in Markdown: the same tables, for a repository or an issue."""

from collections.abc import Sequence

from flowstate_local.bench.accounting import Prices
from flowstate_local.bench.report import view
from flowstate_local.bench.report.view import RunView


def document(runs: Sequence[RunView], prices: Prices | None = None) -> str:
    """The whole document."""
    parts = ["# Evaluation"]
    for run in runs:
        parts += _run(run, prices)
    return "\n\n".join(parts) + "\n"


def _run(run: RunView, prices: Prices | None) -> list[str]:
    config = run.config
    settings = ", ".join(f"{name} {value}" for name, value in config.settings.items())
    parts = [
        f"## {run.title}",
        f"{run.tasks} tasks, {config.trials} trial(s), seed {config.seed}; {settings}. Engine {config.engine}, "
        f"profile {config.profile}, window {config.window:,}, at most {config.max_steps} steps a request and "
        f"{config.max_tokens:,} tokens a step, memory {config.memory_tokens:,} tokens, temperature "
        f"{config.temperature:g}, top_p {config.top_p:g}. Version {config.version}.",
    ]
    if run.missing:
        parts.append(f"**Not played of what was planned: {run.missing} episodes. The tables hold what was.**")
    named = [
        ("Scores and cost", view.main_table(run)),
        ("Figures of the suite", view.figures_table(run)),
        ("Prompt of a model call, as the episode goes on", view.growth_table(run)),
        ("Where the prompt tokens go", view.segments_table(run)),
        ("What the calls were for", view.causes_table(run)),
        ("Faults and refusals", view.faults_table(run)),
        ("Cost", view.cost_table(run, prices)),
        ("Published, measured on other models", view.published_table(run)),
    ]
    for title, table in named:
        if table is not None:
            parts += [f"### {title}", _table(*table)]
    return parts


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [_line(head), "|" + "|".join([" --- ", *[" ---: "] * (len(head) - 1)]) + "|"]
    return "\n".join([*lines, *map(_line, body)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
