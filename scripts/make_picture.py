"""Draw the picture of the README from a real run: `python scripts/make_picture.py RUN_DIR docs/smoke.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlbox.record.state import EVENTS_FILE, load_run_state
from rlbox.report.run_view import format_stage_table_and_notes

SHOWN = ("Final collected", "[holdem][rollout", "weights of step")


def main(run_dir: Path, picture: Path) -> None:
    """Write the SVG: the command, what happened, lines of the last stage, the table."""
    state = load_run_state(run_dir)
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=118, file=nowhere, force_terminal=True)
        console.print(Text("$ rlbox run smoke", style="bold"))
        for line in (run_dir / EVENTS_FILE).read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] in ("stage", "service") and event.get("state") in ("running", "ready", "passed"):
                what = f"service {event['service']} " if "service" in event else ""
                console.print(Text(f"{event['t'][11:19]} {event['stage']}: {what}{event['state']}", style="dim"))
        console.print()
        for line in (run_dir / state.stages[-1].directory / "stage.log").read_text(encoding="utf-8").splitlines():
            if line.startswith(SHOWN):
                console.print(Text(line[:116], style="cyan"))
        console.print()
        console.print(Text(format_stage_table_and_notes(state)))
        console.print(Text(f"\nrun {state.run_id} {state.state}", style="bold green"))
        console.save_svg(str(picture), title="rlbox")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
