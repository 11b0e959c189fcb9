"""What is missing for τ³-bench, and how to get it."""

import sys

from flowstate_local.bench.tau3 import upstream
from flowstate_local.bench.tau3.dataset import DATA_HINT, HASHES, data_folder, differing, load
from flowstate_local.doctor import Check
from flowstate_local.errors import UsageError


def examine() -> list[Check]:
    """Look at everything that needs no model. Imports neither tau2 nor litellm, writes nothing."""
    return [_python(), _tau2(), _pandas(), *_data()]


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= upstream.OLDEST_PYTHON:
        return Check("tau3 python", "ok", found)
    return Check("tau3 python", "warn", f"{found}, tau2-bench wants 3.12 or 3.13", upstream.INSTALL_HINT)


def _tau2() -> Check:
    try:
        upstream.check_installed()
    except UsageError as error:
        return Check("tau3 tau2-bench", "fault", str(error), error.hint)
    return Check("tau3 tau2-bench", "ok", upstream.version_of("tau2"))


def _pandas() -> Check:
    found = upstream.version_of("pandas")
    if not found:
        return Check("tau3 pandas", "warn", "not installed", upstream.PANDAS_HINT)
    if int(found.split(".")[0]) >= 3:
        return Check("tau3 pandas", "warn", found, upstream.PANDAS_HINT)
    return Check("tau3 pandas", "ok", found)


def _data() -> list[Check]:
    try:
        folder = data_folder()
    except UsageError as error:
        return [Check("tau3 data", "fault", str(error), error.hint)]
    checks = []
    for domain in HASHES:
        name = f"tau3 {domain}"
        try:
            count = len(load(domain, folder))
        except UsageError as error:
            checks.append(Check(name, "fault", str(error), error.hint))
            continue
        wrong = differing(domain, folder)
        found = f"{count} tasks in {folder}"
        if wrong:
            checks.append(
                Check(name, "warn", f"{found}; not those of the release: {', '.join(wrong)}", DATA_HINT)
            )
        else:
            checks.append(Check(name, "ok", found))
    if not (folder / "tau2" / "user_simulator" / "simulation_guidelines.md").is_file():
        checks.append(Check("tau3 user", "fault", f"no simulation_guidelines.md in {folder}", DATA_HINT))
    return checks
