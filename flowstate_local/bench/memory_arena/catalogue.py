"""A shop in memory: products from a JSON or JSONL file in WebShop's shape, and a search over their texts."""

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s

from flowstate_local.errors import UsageError

DOWNLOAD = (
    "The product database is `ai-hyz/MemoryArena-product-db` on Hugging Face (items_shuffle.json); a list that large "
    "is read best as JSONL: `jq -c '.[]' items_shuffle.json > products.jsonl`"
)

_PRICE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_MOST_PRICE_TEXTS = 2


@dataclass(frozen=True)
class Product:
    """One product."""

    asin: str
    name: str
    category: str
    """Path, with " › " between its segments."""
    price: float | None
    """Dollars."""
    rating: str
    description: str
    features: tuple[str, ...]

    @property
    def price_text(self) -> str:
        """For a page."""
        return "no price" if self.price is None else f"${self.price:.2f}"

    def page(self) -> str:
        """All that is shown of it."""
        lines = [f"{self.asin} | {self.name}", f"Category: {self.category}", f"Price: {self.price_text}"]
        lines += [f"Rating: {self.rating}"]
        lines += [f"- {feature}" for feature in self.features]
        return "\n".join(lines + ([self.description] if self.description else []))


class Catalogue:
    """Products, and the search over them. Nothing in it changes, so all tasks share one.

    Args:
        products: of several with the same ASIN the first counts.
        skipped: records that were no products, for the reader.
    """

    def __init__(self, products: Iterable[Product], *, skipped: int = 0) -> None:
        self._products: dict[str, Product] = {}
        for product in products:
            self._products.setdefault(product.asin, product)
        if not self._products:
            raise UsageError("a catalogue without products", hint=DOWNLOAD)
        self.skipped = skipped
        self._order = list(self._products.values())
        self._index = bm25s.BM25()
        texts = [
            f"{one.name} {one.category} {' '.join(one.features)} {one.description}" for one in self._order
        ]
        self._index.index(_tokens(texts), show_progress=False)

    @classmethod
    def open(cls, path: Path, *, seed: int = 0) -> "Catalogue":
        """Read a `.json` list or a `.jsonl` file.

        Args:
            path: the file.
            seed: of the prices of products that have a range of prices; each depends on nothing but this and its ASIN.

        Raises:
            UsageError: it's absent, or not JSON, or holds no products.
        """
        skipped = 0
        products: list[Product] = []
        for record in _records(Path(path)):
            product = product_of(record, seed)
            if product is None:
                skipped += 1
            else:
                products.append(product)
        return cls(products, skipped=skipped)

    def __len__(self) -> int:
        return len(self._products)

    def get(self, asin: str) -> Product | None:
        """The product with this ASIN, in any case."""
        return self._products.get(asin.strip().upper())

    def search(self, query: str) -> list[Product]:
        """Products that share words with the query, best first; equals in the order of the file."""
        tokens = _tokens([query])
        k = min(len(self._order), _DEEPEST)
        found, scores = self._index.retrieve(tokens, k=k, show_progress=False)
        ranked = sorted(
            (-float(score), int(place)) for place, score in zip(found[0], scores[0], strict=True) if score > 0
        )
        return [self._order[place] for _, place in ranked]


_DEEPEST = 200
"""Products that a search finds at most."""


def product_of(record: Any, seed: int = 0) -> Product | None:
    """A product from a record in WebShop's shape; None if it has no ASIN or no name."""
    if not isinstance(record, Mapping):
        return None
    asin = str(record.get("asin") or "").strip().upper()
    name = str(record.get("name") or record.get("Title") or record.get("title") or "").strip()
    if not asin or not name:
        return None
    features = record.get("small_description") or record.get("BulletPoints") or ()
    return Product(
        asin=asin,
        name=name,
        category=str(record.get("product_category") or record.get("category") or ""),
        price=_price(record.get("pricing") or record.get("price") or record.get("Price"), asin, seed),
        rating=str(record.get("average_rating") or record.get("rating") or record.get("Rating") or "none"),
        description=str(record.get("full_description") or record.get("Description") or "").strip(),
        features=tuple(map(str, [features] if isinstance(features, str) else features)),
    )


def _price(pricing: Any, asin: str, seed: int) -> float | None:
    """A price; of a range a price inside, the same every time.

    WebShop draws it anew at each start, so that "the cheapest" is not always the same product.
    """
    found = [float(text.replace(",", "")) for text in _PRICE.findall(str(pricing or ""))][:_MOST_PRICE_TEXTS]
    if len(found) < _MOST_PRICE_TEXTS:
        return found[0] if found else None
    return round(random.Random(f"{seed}/{asin}").uniform(*found), 2)


def _records(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8") as file:
            if path.suffix == ".jsonl":
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield _json(line, f"{path}:{number}")
                return
            found = _json(file.read(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", hint=DOWNLOAD) from error
    if not isinstance(found, list):
        raise UsageError(f"{path} is no list of products", hint=DOWNLOAD)
    yield from found


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=DOWNLOAD) from error


def _tokens(texts: list[str]) -> Any:
    return bm25s.tokenize(texts, stopwords=None, show_progress=False)
