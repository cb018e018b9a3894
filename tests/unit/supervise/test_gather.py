"""Parts of the evidence: at once, bounded, none able to hurt another."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.evidence import PART_BYTES, NoEvidenceError, collect_texts_within_time
from rlbox.supervise.failure_report import write_evidence_manifest, write_texts_and_get_errors_by_name


def test_what_hangs_or_fails_is_named_and_the_rest_is_there() -> None:
    never = threading.Event()

    def absent() -> str:
        raise NoEvidenceError("no nvidia-smi here")

    parts = {
        "hangs": lambda: str(never.wait()),
        "fails": lambda: str(1 / 0),
        "absent": absent,
        "good": lambda: "text",
    }
    found = collect_texts_within_time(parts, 0.2)
    never.set()
    assert found.texts == {"good": "text"}
    assert found.missing == {
        "hangs": "not done after 0.2 s",
        "fails": "ZeroDivisionError: division by zero",
        "absent": "no nvidia-smi here",
    }


def test_a_part_that_is_too_long_is_cut_and_says_so() -> None:
    text = collect_texts_within_time({"long": lambda: "x" * 99 + "\n" + "y" * PART_BYTES}, 5.0).texts["long"]
    assert text == "x" * 99 + f"\n... cut here: {PART_BYTES} more characters\n"


def test_the_manifest_names_what_others_wrote(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks/12.txt").write_text("frames")
    assert write_texts_and_get_errors_by_name(tmp_path, {"REPORT.md": "page", "empty.txt": ""}) == {}
    write_evidence_manifest(tmp_path, {"gpu.txt": "no driver"}, SecretMasker({}))
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert [(row["name"], row["bytes"]) for row in found["files"]] == [("REPORT.md", 4), ("stacks/12.txt", 6)]
    assert found["missing"] == {"gpu.txt": "no driver"}


def test_a_full_disk_keeps_what_came_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def write(path: Path, data: bytes) -> None:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path.name)

    monkeypatch.setattr("rlbox.supervise.failure_report.replace_file", write)
    assert write_texts_and_get_errors_by_name(tmp_path, {"REPORT.md": "a", "b": "b", "c": "c"}) == dict.fromkeys(
        ("b", "c"), "No space left on device"
    )
    with pytest.raises(OSError, match="No space"):
        write_texts_and_get_errors_by_name(tmp_path, {"REPORT.md": "a"})
