"""Shopping, scored from the described formulas: the very product, or how much of it was met."""

import re
from collections.abc import Awaitable, Callable, Sequence

from flowstate_local.bench.memory_arena.catalogue import Product

Match = Callable[[str, str], Awaitable[bool]]
"""Does a product of that name have that attribute?"""


async def in_name(name: str, attribute: str) -> bool:
    """Without a judge: the attribute, normalised, stands in the product's name."""
    return _plain(attribute) in _plain(name)


async def reward(
    bought: Product | None, target: Product | None, attributes: Sequence[str], *, asin: str, match: Match
) -> float:
    """Of a step: 1 for the very product, 0 for none, else the share of attributes met times how near its kind is.

    The released rows have no price constraint, so the price term drops out.

    Args:
        bought: what was bought.
        target: the right product, as the catalogue has it; None if it has not.
        attributes: what is asked for.
        asin: of the right product.
        match: whether a name has an attribute.
    """
    if bought is None:
        return 0.0
    if bought.asin == asin:
        return 1.0
    met = sum([await match(bought.name, attribute) for attribute in attributes])
    share = met / len(attributes) if attributes else 0.0
    return share * (_kind(bought, target) if target is not None else 0.5)


def _kind(bought: Product, target: Product) -> float:
    name = _overlap(_tokens(bought.name), _tokens(target.name))
    category = _overlap(_parts(bought.category), _parts(target.category))
    factor = 1.0 if category >= 0.5 or name > 0.2 else 0.5
    if name < 0.1:
        factor = 0.1
    return 0.0 if name == 0 else factor


def _overlap(ours: set[str], theirs: set[str]) -> float:
    return len(ours & theirs) / len(theirs) if theirs else 0.0


def _tokens(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def _parts(category: str) -> set[str]:
    return {part.strip().lower() for part in re.split(r"[›>/]", category) if part.strip()}


def _plain(text: str) -> str:
    return " ".join(text.lower().replace("-", " ").replace("/", " ").split())
