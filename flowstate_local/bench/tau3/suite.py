"""τ³-bench as a suite: one domain, with whoever plays the user and, for retail, whoever judges."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowstate_local.bench.suite import Figure, Played, Seat
from flowstate_local.bench.tau3.dataset import HASHES, Domain, TaskFacts, data_folder, differing, load
from flowstate_local.bench.tau3.figures import Run
from flowstate_local.bench.tau3.judge import judge as ask_judge
from flowstate_local.bench.tau3.scoring import Scores, detail_of, scores_of, with_verdicts
from flowstate_local.bench.tau3.server import Server
from flowstate_local.bench.tau3.simulation import Limits, UserMaker, simulate
from flowstate_local.bench.tau3.upstream import upstream
from flowstate_local.errors import EngineError, UsageError


class Tau3:
    """See `Suite`.

    Args:
        domain: airline (50 tasks, needs no judge) or retail (114, of which 40 need one).
        user: the model that plays the user with tau2's own simulator, or another maker of users.
        judge: the model that judges; without one those rewards stay None until `second_pass`.
        limits: of a conversation; those of the official protocol if not given.

    Raises:
        UsageError: there's no such domain.
    """

    def __init__(
        self,
        domain: Domain,
        *,
        user: Server | UserMaker,
        judge: Server | None = None,
        limits: Limits | None = None,
    ) -> None:
        if domain not in HASHES:
            raise UsageError(f"τ³ has no domain {domain!r} here", hint=f"Use {' or '.join(HASHES)}.")
        self.name = f"tau3-{domain}"
        self.settings: Mapping[str, Any] = {}
        self.domain: Domain = domain
        self.judge = judge
        # Without a judge the reward of a right database isn't known and that of a wrong one is: a running mean of
        # those that are known would be too low.
        self.primary = "reward" if domain == "airline" or judge else "db"
        self._user = user
        self._limits = limits or Limits()
        self._facts: dict[str, TaskFacts] | None = None
        self._warning = ""

    def task_ids(self) -> Sequence[str]:
        """See `Suite.task_ids`. Also shows that tau2 can be imported."""
        upstream()
        return list(self._loaded())

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`."""
        facts = self._fact(task_id)
        tau2 = await asyncio.to_thread(upstream)
        simulated = await simulate(
            tau2, self.domain, task_id, seat, self._make_user, seed=seed, limits=self._limits
        )
        played = Played(scores_of(facts, simulated), simulated.answers, detail_of(facts, simulated))
        try:
            scores, detail = await self.second_pass(task_id, played.scores, played.detail)
        except EngineError as error:
            # The conversation is whole, and the judge may be asked again.
            return replace(played, detail={**played.detail, "judge": {"unreachable": str(error)}})
        return replace(played, scores=scores, detail=detail)

    async def second_pass(
        self,
        task_id: str,
        scores: Mapping[str, float | None],
        detail: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> tuple[Scores, dict[str, Any]]:
        """Scores and detail of a played task with the judge's verdicts; unchanged where there's nothing to judge.

        Needs no tau2. Judging again, with another judge for example, replaces the verdicts.

        Raises:
            EngineError: the judge can't be reached.
        """
        assertions = self._fact(task_id).assertions
        if self.judge is None or not assertions or not scores["db"]:
            return dict(scores), dict(detail)
        verdicts = await ask_judge(self.judge, detail["messages"], assertions)
        return with_verdicts(scores, verdicts), {**detail, "judge": verdicts.as_json()}

    def figures(self, played: Mapping[str, Sequence[Mapping[str, float | None] | None]]) -> list[Figure]:
        """See `Suite.figures`."""
        run = Run(self.domain, self._loaded(), played, self.judge.model if self.judge else "")
        return [self._warned(figure) for figure in run.figures()]

    def _warned(self, figure: Figure) -> Figure:
        return replace(figure, note=f"{self._warning}; {figure.note}") if self._warning else figure

    def _make_user(self, task: Any) -> Any:
        if not isinstance(self._user, Server):
            return self._user(task)
        return upstream().UserSimulator(instructions=str(task.user_scenario), **self._user.for_litellm())

    def _fact(self, task_id: str) -> TaskFacts:
        facts = self._loaded().get(task_id)
        if facts is None:
            raise UsageError(f"{self.domain} has no task {task_id!r}")
        return facts

    def _loaded(self) -> dict[str, TaskFacts]:
        if self._facts is None:
            folder = data_folder()
            self._facts = load(self.domain, folder)
            names = differing(self.domain, folder)
            if names:
                self._warning = f"NOT COMPARABLE, the data differ from the release: {', '.join(names)}"
        return self._facts
