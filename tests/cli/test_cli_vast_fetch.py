"""`rlbox vast fetch` and `destroy` with an instance that is a folder of this machine."""

from __future__ import annotations

from pathlib import Path

import instancebox
import pytest
from fakes import Rlbox
from instancebox import NUMBER
from vastbox import Platform

pytestmark = pytest.mark.allow("sockets", "processes")
platform, instance = instancebox.platform, instancebox.instance


def test_fetch_brings_what_is_missing_and_destroy_waits_for_it(
    rlbox: Rlbox,
    platform: Platform,
    instance: Path,
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    (instance / "notes").write_text("by hand")
    (instance / "large").write_bytes(b"w" * (3 << 20))
    refused = rlbox("vast", "destroy", f"{NUMBER}", "--yes")
    assert (refused.code, "not at home: runs/own-1/" in refused.err) == (5, True), refused.err
    planned = rlbox("vast", "fetch", f"{NUMBER}", "notes", "--to", f"{home}", "--dry-run")
    assert (planned.code, planned.out.splitlines()[0].split()) == (0, ["7", "B", "notes"]), planned.out
    some = rlbox("vast", "fetch", f"{NUMBER}", "notes", "large", "--to", f"{home}", "--json")
    assert (some.code, some.data["brought"], (home / "notes").read_text()) == (0, 2, "by hand"), some.err
    brought = rlbox("vast", "fetch", f"{NUMBER}", "--to", f"{home}", "--json")
    assert (brought.code, (home / "runs/own-1/run.json").is_file()) == (0, True), brought.err
    assert rlbox("vast", "fetch", f"{NUMBER}", "--json").data["brought"] == 0
    (home / "runs/own-1/run.json").unlink()
    assert rlbox("vast", "destroy", f"{NUMBER}", "--yes").code == 5
    assert rlbox("vast", "fetch", f"{NUMBER}", "--json").data["brought"] == 1
    assert rlbox("vast", "destroy", f"{NUMBER}", "--yes").code == 0
    assert platform.instances == {}
