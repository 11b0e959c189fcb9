"""Bundled shopping as a suite: six products in order, each of which must go with those before it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.memory_arena.catalogue import Basket, Catalogue, tools_of
from flowstate_local.bench.memory_arena.rows import ShoppingRow, load
from flowstate_local.bench.memory_arena.shopping_score import in_name, reward
from flowstate_local.bench.suite import Figure, Played, Seat

INSTRUCTIONS = """You buy the products of a bundle, one in each request: search for the options, open the pages of those that fit what was bought before, compare, and buy one.
"""


class ShoppingSettings(BaseModel):
    """What may be set of shopping."""

    model_config = ConfigDict(extra="forbid")

    folder: str = "memoryarena"
    products: str = "items.json"
    """File of the catalogue."""
    include_history: bool = False
    """Tells the right product of each step before; a leak, off in every official run, and labelled when on."""
    enable_feedback: bool = False
    """Tells after each step whether it was right; another leak, off and labelled likewise."""


class Shopping:
    """See `suite.Suite`. The judge of attributes is left out: `ps_reward_nollm` needs none."""

    name = "memory_arena_shopping"
    primary = "ps_exact"

    def __init__(self, settings: ShoppingSettings) -> None:
        self.settings: Mapping[str, Any] = settings.model_dump()
        rows, self._warning = load(Path(settings.folder), "bundled_shopping", ShoppingRow)
        self._rows = {str(row.id): row for row in rows}
        self._catalogue = Catalogue(Path(settings.products))
        self._history, self._feedback = settings.include_history, settings.enable_feedback

    def task_ids(self) -> Sequence[str]:
        """See `Suite.task_ids`."""
        return list(self._rows)

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`."""
        row, basket = self._rows[task_id], Basket()
        method = seat(tools_of(self._catalogue, basket), INSTRUCTIONS)
        answers: list[Answer] = []
        bought: list[str] = []
        for place, question in enumerate(row.questions):
            basket.asin = ""
            answers.append(await method.ask(self._leaks(row, bought) + question))
            bought.append(basket.asin)
            assert len(bought) == place + 1
        exact = [float(asin == right.target_asin) for asin, right in zip(bought, row.answers, strict=True)]
        rewards = [
            await reward(
                self._catalogue.get(asin) if asin else None,
                self._catalogue.get(right.target_asin),
                right.attributes,
                asin=right.target_asin,
                match=in_name,
            )
            for asin, right in zip(bought, row.answers, strict=True)
        ]
        return Played(
            scores={
                "ps_exact": _mean(exact),
                "SR": float(all(exact)),
                "ps_reward_nollm": _mean(rewards),
                "success_reward1": _mean([float(one == 1.0) for one in rewards]),
            },
            answers=tuple(answers),
            detail={"scores_by_request": exact, "bought": bought, "rewards": rewards},
        )

    def figures(self, played: Mapping[str, Sequence[Mapping[str, float | None] | None]]) -> list[Figure]:
        """See `Suite.figures`. Which of the forms of PS the papers mean isn't known, so all are told."""
        every = [one or {} for ones in played.values() for one in ones]
        leaks = [
            name
            for name, on in (("include_history", self._history), ("enable_feedback", self._feedback))
            if on
        ]
        label = f"LEAK: {', '.join(leaks)} on" if leaks else ""
        note = "; ".join(one for one in (label, self._warning) if one)
        told = {
            "ps_exact": "the very product",
            "SR": "all six the very products",
            "ps_reward_nollm": "attributes found in the product's name",
            "success_reward1": "reward of 1, which another product can reach",
        }
        return [
            Figure(
                name,
                _mean([float(one.get(name) or 0.0) for one in every]),
                len(every),
                f"{note}; {about}" if note else about,
            )
            for name, about in told.items()
        ]

    def _leaks(self, row: ShoppingRow, bought: Sequence[str]) -> str:
        """What the official switches would tell; "" as long as they are off."""
        lines = []
        for place, (asin, right) in enumerate(zip(bought, row.answers, strict=False), start=1):
            if self._history:
                lines.append(f"Purchase history, product {place}: the right one was {right.target_asin}.")
            if self._feedback and place == len(bought):
                lines.append(f"Product {place} was {'right' if asin == right.target_asin else 'wrong'}.")
        return "\n".join([*lines, ""]) if lines else ""


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
