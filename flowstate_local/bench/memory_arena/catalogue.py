"""A shop in memory: products from a JSON file, found by their words. No Java, no index on disk."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import bm25s

from flowstate_local.errors import ToolError, UsageError
from flowstate_local.tools import Toolbox, tool

HINT = (
    "A JSON list or JSON lines of products with asin, name, category, price, rating and description; "
    "ai-hyz/MemoryArena-product-db on the hub has the official ones (items_shuffle.json)."
)
MOST_FOUND = 10
PAGE_CHARS = 2_000


@dataclass(frozen=True)
class Product:
    """One thing to buy."""

    asin: str
    name: str
    category: str
    """A path, its parts separated by ›, > or /."""
    price: float | None
    rating: str
    description: str


class Catalogue:
    """Products of a file. A price that is a range is its lower end, so that it never changes.

    Raises:
        UsageError: the file isn't there, is no JSON, or holds no product; names the first broken one.
    """

    def __init__(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} can't be read: {error}", hint=HINT) from None
        try:
            found = (
                json.loads(text)
                if text.lstrip().startswith("[")
                else [json.loads(x) for x in text.splitlines() if x.strip()]
            )
        except json.JSONDecodeError as error:
            raise UsageError(f"{path} is no JSON: {error}", hint=HINT) from None
        self._products = {one.asin: one for one in (_product(raw, i, path) for i, raw in enumerate(found, 1))}
        if not self._products:
            raise UsageError(f"{path} holds no product", hint=HINT)

    def get(self, asin: str) -> Product | None:
        """A product, or None."""
        return self._products.get(asin.strip().upper()) or self._products.get(asin.strip())

    def search(self, query: str) -> list[Product]:
        """The products that share most words with the query, at most MOST_FOUND."""
        products = list(self._products.values())
        wanted = bm25s.tokenize(query, show_progress=False)
        found, scores = self._index.retrieve(wanted, k=min(MOST_FOUND, len(products)), show_progress=False)
        return [products[int(i)] for i, score in zip(found[0], scores[0], strict=True) if score > 0]

    @cached_property
    def _index(self) -> Any:
        index = bm25s.BM25()
        texts = [f"{one.name} {one.category} {one.description}" for one in self._products.values()]
        index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
        return index


class Basket:
    """What was bought for one step; the first purchase counts."""

    def __init__(self) -> None:
        self.asin = ""


def tools_of(catalogue: Catalogue, basket: Basket) -> Toolbox:
    """Search, look, buy."""

    @tool(idempotent=True)
    def search(query: str) -> str:
        """Search the shop; the products that fit best, with their ASINs."""
        found = catalogue.search(query)
        if not found:
            raise ToolError(f"nothing is found for {query!r}", kind="not_found")
        return "\n".join(f"{one.asin}: {one.name} ({_price(one)})" for one in found)

    @tool(idempotent=True)
    def open_product(asin: str) -> str:
        """Open the page of a product."""
        one = catalogue.get(asin)
        if one is None:
            raise ToolError(f"there is no product {asin!r}", kind="not_found")
        return (
            f"{one.asin}: {one.name}\nCategory: {one.category}\nPrice: {_price(one)}\nRating: {one.rating or 'none'}\n"
            f"{one.description[:PAGE_CHARS]}"
        )

    @tool
    def buy(asin: str) -> str:
        """Buy one product; this ends the step."""
        one = catalogue.get(asin)
        if one is None:
            raise ToolError(f"there is no product {asin!r}", kind="not_found")
        if basket.asin:
            raise ToolError(f"{basket.asin} was bought for this step already", kind="bought")
        basket.asin = one.asin
        return f"Bought {one.asin}: {one.name} for {_price(one)}."

    return Toolbox([search, open_product, buy])


def _product(raw: Any, number: int, path: Path) -> Product:
    if (
        not isinstance(raw, Mapping)
        or not str(raw.get("asin", "")).strip()
        or not str(raw.get("name", "")).strip()
    ):
        raise UsageError(f"{path}: product {number} has no asin or no name", hint=HINT)
    category = raw.get("category") or raw.get("product_category") or ""
    if isinstance(category, Sequence) and not isinstance(category, str):
        category = " › ".join(map(str, category))
    described = raw.get("description") or raw.get("full_description") or raw.get("small_description") or ""
    if isinstance(described, Sequence) and not isinstance(described, str):
        described = "\n".join(map(str, described))
    return Product(
        asin=str(raw["asin"]).strip(),
        name=" ".join(str(raw["name"]).split()),
        category=str(category),
        price=_lowest(raw.get("price", raw.get("pricing"))),
        rating=str(raw.get("rating") or raw.get("average_rating") or ""),
        description=str(described),
    )


def _lowest(said: Any) -> float | None:
    numbers = [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", str(said or ""))]
    return min(numbers) if numbers else None


def _price(one: Product) -> str:
    return f"${one.price:,.2f}" if one.price is not None else "price unknown"
