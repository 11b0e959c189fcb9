"""The report as one HTML file: no script, no request to anywhere, light and dark."""

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from flowstate_local.bench.accounting import Prices
from flowstate_local.bench.methods import METHODS
from flowstate_local.bench.report import view
from flowstate_local.bench.report.view import RunView


def page(runs: Sequence[RunView], prices: Prices | None = None) -> str:
    """The whole page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((files("flowstate_local.bench.report") / "page.html.j2").read_text())
    about = {name: info.about for name, info in METHODS.items()}
    return template.render(runs=runs, prices=prices, view=view, about=about, depth=view.chart_depth(runs))
