"""What a run came to, by definitions of our own: tau2 leaves what failed out of its denominators, we don't.

Every figure is over all trials that were planned: a trial that failed counts as one that missed. Beside each stands
what an agent reaches that does nothing at all.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flowstate_local.bench.suite import Figure
from flowstate_local.bench.tau3.dataset import (
    FAULTY,
    KINDS,
    SILENT_DB,
    SILENT_REWARD,
    Domain,
    Kind,
    TaskFacts,
)

Trial = Mapping[str, float | None] | None
"""The scores of one; None if it failed."""


@dataclass(frozen=True)
class Run:
    """All trials of a run."""

    domain: Domain
    facts: Mapping[str, TaskFacts]
    played: Mapping[str, Sequence[Trial]]
    judge: str = ""
    """Model that judges, "" for none."""

    def figures(self) -> list[Figure]:
        """All of them, the most telling first."""
        every = list(self.played)
        writing = [task for task in every if self.facts[task].gold["write"]]
        made = [self._rewards("PR", every)]
        if self.domain == "retail":
            free = [task for task in every if not self.facts[task].assertions]
            made += [
                self._rewards("PR without faulty tasks", self._sound(every)),
                self._rewards("PR, judge-free tasks", free),
                self._rewards("PR, judge-free tasks without faulty ones", self._sound(free)),
                self._judge_failures(),
            ]
        made += [self._rewards("PR, tasks with a write", writing), *self._powers(every)]
        made += [self._databases("DB match", every)]
        if self.domain == "retail":
            made += [self._databases("DB match without faulty tasks", self._sound(every))]
        made += [self._databases("DB match, tasks with a write", writing)]
        made += [self._actions("action accuracy", KINDS, "micro, all kinds of gold actions")]
        made += [self._actions(f"action accuracy, {kind}", (kind,), "micro") for kind in ("read", "write")]
        return [*made, self._stopped(writing), self._replied(every), self._errors(every)]

    def _sound(self, tasks: Iterable[str]) -> list[str]:
        return [task for task in tasks if task not in FAULTY[self.domain]]

    def _trials(self, tasks: Iterable[str]) -> list[Trial]:
        return [trial for task in tasks for trial in self.played[task]]

    def _rewards(self, name: str, tasks: Sequence[str]) -> Figure:
        judged = any(self.facts[task].assertions for task in tasks)
        # What a judge would say of silence isn't known: at most yes wherever the database is right.
        silent = SILENT_DB if judged else SILENT_REWARD
        note = _floor(silent[self.domain], tasks, at_most=judged)
        if judged:
            note += f"; judge: {self.judge or 'none'}"
        return self._rate(name, "reward", tasks, note)

    def _databases(self, name: str, tasks: Sequence[str]) -> Figure:
        note = _floor(SILENT_DB[self.domain], tasks)
        if self.domain == "retail":
            note += "; this is PR by its DB part only"
        return self._rate(name, "db", tasks, note)

    def _rate(self, name: str, metric: str, tasks: Sequence[str], note: str) -> Figure:
        """The mean; not known as long as one trial isn't."""
        trials = self._trials(tasks)
        values = [0.0 if trial is None else trial.get(metric) for trial in trials]
        unknown = values.count(None)
        if unknown:
            return Figure(name, None, len(values), f"{unknown} trials await the judge; {note}")
        known = [value for value in values if value is not None]
        return Figure(name, sum(known) / len(known) if known else None, len(known), note)

    def _powers(self, tasks: Sequence[str]) -> list[Figure]:
        """pass^k: how likely k trials of a task all succeed."""
        trials = min((len(self.played[task]) for task in tasks), default=0)
        made = []
        for k in range(2, trials + 1):
            chances: list[float] = []
            unknown = 0
            for task in tasks:
                rewards = [0.0 if trial is None else trial.get("reward") for trial in self.played[task]]
                unknown += None in rewards
                chances.append(math.comb(rewards.count(1.0), k) / math.comb(len(rewards), k))
            value = None if unknown else sum(chances) / len(chances)
            made.append(Figure(f"pass^{k}", value, len(tasks), f"of {trials} trials of each task"))
        return made

    def _actions(self, name: str, kinds: Sequence[Kind], note: str) -> Figure:
        right, gold = 0.0, 0
        for task, trials in self.played.items():
            gold += len(trials) * sum(self.facts[task].gold[kind] for kind in kinds)
            right += sum(trial.get(kind) or 0.0 for trial in trials if trial for kind in kinds)
        return Figure(name, right / gold if gold else None, gold, f"floor 0; {note}")

    def _judge_failures(self) -> Figure:
        verdicts = [trial["judged"] for trial in self._trials(self.played) if trial and "judged" in trial]
        given = [verdict for verdict in verdicts if verdict is not None]
        note = f"judge: {self.judge or 'none'}; conversations with a wrong database aren't judged"
        return Figure("judge failed", 1 - sum(given) / len(given) if given else None, len(given), note)

    def _stopped(self, writing: Sequence[str]) -> Figure:
        trials = [trial for trial in self._trials(writing) if trial is not None]
        stopped = sum(trial.get("write_reached") == 0 for trial in trials)
        note = f"{stopped} trials: the user ended, no writing tool was called, the task needs one"
        return Figure(
            "stopped before the write", stopped / len(trials) if trials else None, len(trials), note
        )

    def _replied(self, tasks: Sequence[str]) -> Figure:
        shares = [trial.get("replied") or 0.0 for trial in self._trials(tasks) if trial is not None]
        note = "mean share of the requests of a conversation; the others got a fallback text or were cut off"
        return Figure("requests replied to", sum(shares) / len(shares) if shares else None, len(shares), note)

    def _errors(self, tasks: Sequence[str]) -> Figure:
        trials = self._trials(tasks)
        failed = trials.count(None)
        note = f"{failed} trials; they count as failures above"
        return Figure("trials that failed", failed / len(trials) if trials else None, len(trials), note)


def _floor(silent: Collection[str], tasks: Sequence[str], *, at_most: bool = False) -> str:
    reached = sum(task in silent for task in tasks)
    share = f" ({100 * reached / len(tasks):.1f} %)" if tasks else ""
    return f"floor {'at most ' if at_most else ''}{reached} of {len(tasks)} tasks{share}, by doing nothing"
