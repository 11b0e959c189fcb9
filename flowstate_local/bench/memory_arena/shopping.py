"""Bundled shopping as a suite: six products that go together, bought one request after the other."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowstate_local.baselines.base import Answer, Method
from flowstate_local.bench.memory_arena.catalogue import Catalogue, Product
from flowstate_local.bench.memory_arena.judge import Judge, attribute_prompt, spent
from flowstate_local.bench.memory_arena.load import shopping_rows
from flowstate_local.bench.memory_arena.metrics import Trials, at, depth_figures, mean, mean_figure
from flowstate_local.bench.memory_arena.reward import has_attribute, reward
from flowstate_local.bench.memory_arena.rows import ShoppingRow, Wanted
from flowstate_local.bench.memory_arena.shop import Basket, shop_tools
from flowstate_local.bench.suite import Figure, Played, Seat
from flowstate_local.errors import UsageError

INSTRUCTIONS = """You buy products that go together, one for each request, in order; each must go with those bought before.
Use search, open_product and buy for what the requests call search, click and purchase. Search each option by itself, compare prices and ratings, buy one product, then reply."""

_NOTES = {
    "ps_exact": "steps with the target ASIN",
    "SR": "bundles with every target ASIN",
    "ps_reward": "mean reward, attributes by a judge",
    "success_reward1": "bundles in which every reward is 1; another product than the target can have it",
    "ps_reward_nollm": "mean reward, attributes as substrings of the name",
    "success_reward1_nollm": "as success_reward1, without a judge",
}


class Shopping:
    """See `bench.suite.Suite`.

    Args:
        folder: with the official files.
        catalogue: the shop.
        judge: says whether a product has an attribute; without one the figures that need it aren't measured until
            `judged` is called.
        per_category: only the first so many bundles of each category; the official default is 10, which is 50 of 150.
        leak_history: LEAK: tell the agent what would have been right in earlier steps, and whether it was. Officially
            off, like the next.
        leak_feedback: LEAK: let each purchase say what would have been right.
    """

    primary = "ps_exact"

    def __init__(
        self,
        folder: Path,
        catalogue: Catalogue,
        *,
        judge: Judge | None = None,
        per_category: int | None = None,
        leak_history: bool = False,
        leak_feedback: bool = False,
    ) -> None:
        loaded = shopping_rows(folder)
        self.rows: Mapping[str, ShoppingRow] = _first(loaded.rows, per_category)
        self.leaks = tuple(
            name for name, on in (("history", leak_history), ("feedback", leak_feedback)) if on
        )
        # In the name, so that no report can lose it.
        self.name = "_".join(("memory_arena_shopping", *(f"LEAK_{leak}" for leak in self.leaks)))
        self.remarks = (*loaded.remarks, *_coverage(self.rows, catalogue))
        self.catalogue = catalogue
        self.settings: Mapping[str, Any] = {}
        self.judge = judge

    def task_ids(self) -> list[str]:
        """See `Suite.task_ids`."""
        return list(self.rows)

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`. Prices depend on the catalogue's seed, not on this one."""
        row = _row(self.rows, task_id)
        basket = Basket()
        method = seat(shop_tools(self.catalogue, basket), INSTRUCTIONS)
        steps: list[dict[str, Any]] = []
        answers: list[Answer] = []
        try:
            for question, wanted in zip(row.questions, row.answers, strict=True):
                answers.append(answer := await self._ask(method, basket, question, wanted, steps))
                steps.append(self._step(basket.bought, wanted, answer))
        finally:
            await method.close()
        judged = await self.judged({"id": row.id, "leaks": list(self.leaks), "steps": steps})
        return Played(judged.scores, tuple(answers), judged.detail)

    async def _ask(
        self,
        method: Method,
        basket: Basket,
        question: str,
        wanted: Wanted,
        steps: Sequence[Mapping[str, Any]],
    ) -> Answer:
        basket.begin()
        if "feedback" in self.leaks:
            basket.feedback = lambda product: _told(product.asin, wanted.target_asin)
        told = [_told((step["bought"] or {}).get("asin"), step["wanted"]["target_asin"]) for step in steps]
        history = "".join(f"Product {k}: {line}\n" for k, line in enumerate(told, start=1))
        return await method.ask(
            f"Purchase History\n{history}\n{question}" if history and "history" in self.leaks else question
        )

    def _step(self, bought: Product | None, wanted: Wanted, answer: Answer) -> dict[str, Any]:
        target = self.catalogue.get(wanted.target_asin)
        return {
            "wanted": wanted.model_dump(mode="json"),
            "target": asdict(target) if target else None,
            "bought": asdict(bought) if bought else None,
            "outcome": answer.outcome,
        }

    async def second_pass(
        self,
        task_id: str,
        scores: Mapping[str, float | None],
        detail: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> tuple[Mapping[str, float | None], Mapping[str, Any]]:
        """Scores and detail with the judge's verdicts; see `judged`."""
        played = await self.judged(detail, again=again)
        return played.scores, played.detail

    async def judged(self, detail: Mapping[str, Any], *, again: bool = False) -> Played:
        """The second pass: judge the attributes of what was bought, as stored. Without a judge only the scores are new.

        Args:
            detail: `Played.detail` of a task.
            again: judge anew what has a verdict.

        Returns:
            Scores and detail with the verdicts; no answers.
        """
        steps = list(detail["steps"])
        label = detail.get("judge", "")
        if self.judge is not None:
            steps = await asyncio.gather(*(_with_verdicts(step, self.judge, again) for step in steps))
            label = self.judge.label
        verdicts = [verdict for step in steps for verdict in (step.get("verdicts") or {}).values()]
        found = {**detail, "steps": steps, "judge": label, "judge_tokens": spent(verdicts)}
        return Played(shopping_scores(steps), (), found)

    def figures(self, played: Trials) -> list[Figure]:
        """See `Suite.figures`. What is published as PS may be any of `ps_exact`, `ps_reward`, `ps_reward_nollm`."""
        depths = {task: len(_row(self.rows, task).questions) for task in played}
        judge = f"judge: {self.judge.label}" if self.judge is not None else "judge: see the details"
        leaks = [f"LEAK: {leak} of the truth is told to the agent" for leak in self.leaks]
        general = (*leaks, *self.remarks)
        figures = []
        for metric, note in _NOTES.items():
            by = (judge,) if metric in ("ps_reward", "success_reward1") else ()
            figures.append(mean_figure(played, metric, note="; ".join((note, *by, *general))))
        return [*figures, *depth_figures(played, depths)]


def shopping_scores(steps: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """All forms of PS and SR, from what was stored."""
    exact = [
        float(bool(step["bought"]) and step["bought"]["asin"] == step["wanted"]["target_asin"].upper())
        for step in steps
    ]
    plain = [_reward(step, judged=False) for step in steps]
    judged = [_reward(step, judged=True) for step in steps]
    return {
        "ps_exact": mean(exact)[0],
        "SR": float(all(exact)),
        "ps_reward": None if None in judged else mean(judged)[0],
        "success_reward1": None if None in judged else float(all(one == 1.0 for one in judged)),
        "ps_reward_nollm": None if None in plain else mean(plain)[0],
        "success_reward1_nollm": None if None in plain else float(all(one == 1.0 for one in plain)),
        **{at(k): one for k, one in enumerate(exact, start=1)},
    }


def _reward(step: Mapping[str, Any], *, judged: bool) -> float | None:
    """Of one step; None if a verdict is missing, or the target isn't in the catalogue, so that nothing can be compared."""
    bought, target = _product(step["bought"]), _product(step["target"])
    if bought is None:
        return 0.0
    if bought.asin == step["wanted"]["target_asin"].upper():
        return 1.0
    if target is None:
        return None
    attributes = step["wanted"]["attributes"]
    if not judged:
        return reward(bought, target, [has_attribute(bought.name, one) for one in attributes])
    verdicts = step.get("verdicts") or {}
    has = [(verdicts.get(one) or {}).get("yes") for one in attributes]
    return None if None in has else reward(bought, target, list(map(bool, has)))


async def _with_verdicts(step: Mapping[str, Any], judge: Judge, again: bool) -> dict[str, Any]:
    """A step with a verdict for each attribute; none is needed where nothing, or the target itself, was bought."""
    bought = step["bought"]
    if bought is None or bought["asin"] == step["wanted"]["target_asin"].upper():
        return dict(step)
    verdicts = dict(step.get("verdicts") or {})
    for attribute in step["wanted"]["attributes"]:
        if again or (verdicts.get(attribute) or {}).get("yes") is None:
            verdict = await judge.ask(attribute_prompt(bought["name"], attribute))
            verdicts[attribute] = verdict.dump()
    return {**step, "verdicts": verdicts}


def _told(bought: str | None, target: str) -> str:
    """LEAK: the line that tells the truth about a purchase."""
    verdict = "matched" if bought == target.upper() else "not matched"
    return f"{verdict}; the ground-truth item is {target}."


def _product(stored: Mapping[str, Any] | None) -> Product | None:
    return Product(**{**stored, "features": tuple(stored["features"])}) if stored else None


def _first(rows: Mapping[str, ShoppingRow], per_category: int | None) -> Mapping[str, ShoppingRow]:
    """The first bundles of each category: `baking_item_0` is of category baking."""
    seen: Counter[str] = Counter()
    kept: dict[str, ShoppingRow] = {}
    for task, row in rows.items():
        category = row.category.split("_item_")[0]
        seen[category] += 1
        if per_category is None or seen[category] <= per_category:
            kept[task] = row
    return kept


def _coverage(rows: Mapping[str, ShoppingRow], catalogue: Catalogue) -> list[str]:
    targets = {wanted.target_asin for row in rows.values() for wanted in row.answers}
    absent = sum(catalogue.get(asin) is None for asin in targets)
    return [f"{absent} of {len(targets)} targets aren't in the catalogue"] if absent else []


def _row(rows: Mapping[str, ShoppingRow], task_id: str) -> ShoppingRow:
    if task_id not in rows:
        raise UsageError(f"there is no bundle {task_id!r}")
    return rows[task_id]
