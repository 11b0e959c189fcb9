"""What a purchase is worth beside the right one: by ASIN, and by likeness."""

import re
from collections.abc import Sequence

from flowstate_local.bench.memory_arena.catalogue import Product

_TOKEN = re.compile(r"[a-z0-9]+")
_BLANKS = re.compile(r"[\s\-/]+")


def has_attribute(name: str, attribute: str) -> bool:
    """Whether the attribute stands in the name, "-" and "/" being blanks; the rule without a judge."""
    return _normal(attribute) in _normal(name)


def type_factor(bought: Product, target: Product) -> float:
    """How much of the reward is left for a product of another kind."""
    name = _share(set(_TOKEN.findall(bought.name.lower())), set(_TOKEN.findall(target.name.lower())))
    if name == 0:
        return 0.0
    if name < 0.1:
        return 0.1
    category = _share(_segments(bought.category), _segments(target.category))
    return 1.0 if category >= 0.5 or name > 0.2 else 0.5


def reward(bought: Product | None, target: Product, has: Sequence[bool]) -> float:
    """From 0 to 1. A product that isn't the target can have 1 too.

    Args:
        bought: None if nothing was.
        target: the right product.
        has: for each wanted attribute, whether what was bought has it. The published rows have no price constraint,
            so that there is no term for the price.
    """
    if bought is None:
        return 0.0
    if bought.asin == target.asin:
        return 1.0
    return (sum(has) / len(has) if has else 0.0) * type_factor(bought, target)


def _normal(text: str) -> str:
    return _BLANKS.sub(" ", text.lower()).strip()


def _segments(category: str) -> set[str]:
    return {segment.strip().lower() for segment in category.split("›") if segment.strip()}


def _share(found: set[str], wanted: set[str]) -> float:
    return len(found & wanted) / len(wanted) if wanted else 0.0
