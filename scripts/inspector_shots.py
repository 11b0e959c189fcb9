"""Write the pictures of the inspector that the README shows: python scripts/inspector_shots.py [CHROMIUM]."""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "inspector")]
from recorded_story import recorded  # noqa: E402

SHOTS = {
    "timeline": ("light", "#/space/trip/request/r6"),
    "graph": ("dark", "#/space/trip/graph/n8"),
    "tasks": ("light", "#/space/trip/tasks/museum-tickets"),
    "tokens": ("dark", "#/space/trip/tokens"),
}


def main() -> None:
    chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as name,
        recorded(Path(name), large=False) as memory,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for shot, (scheme, address) in SHOTS.items():
            size = {"width": 1280, "height": 760}
            context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(f"{memory.url}/inspect")
            page.fill("#key", memory.key)
            page.keyboard.press("Enter")
            page.wait_for_selector(".spaces")
            page.goto(f"{memory.url}/inspect{address}")
            page.wait_for_timeout(800)
            page.screenshot(path=folder / f"inspector-{shot}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
