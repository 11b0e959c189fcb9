"""The tools of a shop: search, open a product's page, buy."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from flowstate_local.bench.memory_arena.catalogue import Catalogue, Product
from flowstate_local.calculator import evaluate
from flowstate_local.errors import ToolError
from flowstate_local.tools import Toolbox, tool

PAGE = 10
"""Products on a page of results, as in WebShop."""


class Basket:
    """What is bought in the request that runs now; one for each task."""

    def __init__(self) -> None:
        self.bought: Product | None = None
        self.feedback: Callable[[Product], str] | None = None
        """LEAK: what a purchase says about the truth; None, as it should be."""

    def begin(self) -> None:
        """The next request: nothing is bought yet."""
        self.bought = None

    def put(self, product: Product) -> str:
        """Buy. One product a request."""
        if self.bought is not None:
            raise ToolError(f"{self.bought.asin} is bought already in this request", kind="bought_already")
        self.bought = product
        said = f"Bought: {product.asin} | {product.name} | {product.price_text}."
        return f"{said} {self.feedback(product)}" if self.feedback else said


def shop_tools(catalogue: Catalogue, basket: Basket) -> Toolbox:
    """The tools of one task."""

    @tool(idempotent=True)
    def search(query: str, page: Annotated[int, Field(ge=1, le=20)] = 1) -> str:
        """Search the shop for one product: ASIN, name and price of what fits best.

        Args:
            query: A detailed description.
            page: Page of the results, from 1.
        """
        found = catalogue.search(query)
        pages = max(1, -(-len(found) // PAGE))
        if page > pages:
            raise ToolError(f"there are {pages} pages of results", kind="no_such_page")
        lines = [f"Page {page} of {pages}, {len(found)} results"]
        shown = found[(page - 1) * PAGE : page * PAGE]
        return "\n".join(lines + [f"{one.asin} | {one.name} | {one.price_text}" for one in shown])

    @tool(idempotent=True)
    def open_product(asin: str) -> str:
        """The page of a product, with its rating, features and description.

        Args:
            asin: As the search shows it.
        """
        return _known(catalogue, asin).page()

    @tool
    def buy(asin: str) -> str:
        """Buy a product: one for each request, and for good.

        Args:
            asin: As the search shows it.
        """
        return basket.put(_known(catalogue, asin))

    @tool(name="calculate", idempotent=True)
    def compute(expression: str) -> str:
        """Calculate or compare, such as 12.5 + 8 < 70."""
        return evaluate(expression)

    return Toolbox([search, open_product, buy, compute])


def _known(catalogue: Catalogue, asin: str) -> Product:
    product = catalogue.get(asin)
    if product is None:
        raise ToolError(f"there is no product {asin!r}", kind="not_found")
    return product
