"""The floor and the ceiling of τ³-bench: silence and the gold actions, through our bridge and tau2's own grades.

No model, no network; needs tau2-bench (`flowstate_local.bench.tau3.doctor` says how to get it). About four minutes.

    airline  gold: DB 50/50, reward 50/50       silent: DB 24/50, reward 23/50
    retail   gold: DB 114/114, reward 74/74     silent: DB 11/114, reward 6/74 (rewards of the judge-free tasks)
"""

import argparse
import asyncio

from flowstate_local.bench.suite import Played
from flowstate_local.bench.tau3.dataset import KINDS, SIZES, Domain
from flowstate_local.bench.tau3.oracle import gold_seat, one_request, silent_seat
from flowstate_local.bench.tau3.suite import Tau3
from flowstate_local.bench.tau3.upstream import upstream

CONCURRENCY = 4


async def play_all(suite: Tau3, domain: Domain, *, gold: bool) -> dict[str, Played]:
    tau2, gate = upstream(), asyncio.Semaphore(CONCURRENCY)

    async def one(task_id: str) -> Played:
        async with gate:
            seat = gold_seat(tau2.task(domain, task_id)) if gold else silent_seat
            return await suite.play(task_id, seat, seed=0)

    ids = suite.task_ids()
    return dict(zip(ids, await asyncio.gather(*map(one, ids)), strict=True))


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domain", choices=list(SIZES), action="append")
    parser.add_argument("--figures", action="store_true", help="also print every figure")
    options = parser.parse_args()
    for domain in options.domain or SIZES:
        suite = Tau3(domain, user=one_request(upstream()))
        for agent in ("gold", "silent"):
            played = await play_all(suite, domain, gold=agent == "gold")
            scores = [one.scores for one in played.values()]
            rewards = [s["reward"] for s in scores if "assertions" not in s]
            actions = sum(s[kind] or 0 for s in scores for kind in KINDS)
            print(
                f"{domain} {agent}: DB {sum(s['db'] or 0 for s in scores):.0f}/{len(scores)}, "
                f"reward without judge {sum(r or 0 for r in rewards):.0f}/{len(rewards)}, "
                f"gold actions {actions:.0f}, "
                f"tool errors {sum(one.detail['tool_errors'] for one in played.values())}",
                flush=True,
            )
            if options.figures:
                for figure in suite.figures({task: [one.scores] for task, one in played.items()}):
                    value = "-" if figure.value is None else f"{figure.value:.3f}"
                    print(f"  {figure.name}: {value} (n={figure.n}; {figure.note})")


if __name__ == "__main__":
    asyncio.run(main())
