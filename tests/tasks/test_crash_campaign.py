"""Some of the crash campaign (bench/crash.py has all of it): SIGKILL at random moments, and nothing lost or done twice."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BAD = ("lost_steps", "duplicated_effects", "stores_that_do_not_verify", "unfinished_tasks", "other_problems")


def test_tasks_survive_being_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "crash.py"), "--kills", "60", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = {name: figure["value"] for name, figure in json.loads(done.stdout)["figures"].items()}
    assert {name: figures[name] for name in BAD} == dict.fromkeys(BAD, 0)
    assert figures["kills"] == 60
    assert figures["kills_with_a_step_under_way"] > 10, "the kills hit work"
    assert figures["tasks"] == figures["completed"] + figures["failed_and_undone"]
