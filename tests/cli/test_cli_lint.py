"""`rlbox lint`."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys

import pytest
from fakes import CASES, CHECKOUT, JOB, TARGET, Folder, Rlbox, Said

BAD = CASES / "lint" / "bad.sh"
GOOD = CASES / "lint" / "good.sh"
pytestmark = pytest.mark.allow("processes")  # bash -n
PINNED = TARGET.replace('"six==1.16.0"', '"vllm==0.12.0", "ray[default]==2.60.0", "torch"')


def test_a_script_with_defects(rlbox: Rlbox) -> None:
    said = rlbox("lint", str(BAD), "--json")
    assert said.code == 1
    assert said.data["schema"] == 1
    assert [(one["line"], one["rule"]) for one in said.data["findings"]] == [
        (4, "nccl-timeout"),
        (5, "stubs-at-run-time"),
        (5, "empty-path-element"),
        (6, "ray-shutdown"),
        (7, "kill-by-name"),
        (9, "ray-port-in-worker-range"),
        (10, "ray-dashboard-open"),
        (11, "ray-storage"),
        (12, "curl-without-fail"),
        (13, "ray-job-packs-folder"),
        (14, "openrlhf-flags"),
        (15, "loopback-on-nodes"),
        (15, "openrlhf-flags"),
        (16, "openrlhf-flags"),
        (16, "ray-job-relative-output"),
        (16, "tee-status"),
        (17, "quoted-glob"),
        (17, "bracket-pattern"),
    ]


def test_the_same_script_in_forms_that_work(rlbox: Rlbox) -> None:
    said = rlbox("lint", str(GOOD))
    assert (said.code, said.out, said.err) == (0, "", "1 file: nothing found\n")


def test_text(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("x.sh", "ray shutdown\n")
    said = rlbox("lint", "x.sh")
    assert said.code == 1
    assert said.out == (
        "x.sh:1:1: error: Ray has no command `shutdown`: No such command 'shutdown'; ray.shutdown() is Python"
        " [ray-shutdown]\n"
        "  next: ray stop, only in the container of your cluster\n"
    )
    assert said.err == "1 file: 1 error\n"


def test_sarif_has_findings_with_rules_and_places(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("a b/x.sh", "true\n  ray shutdown\nexport TRITON_CACHE_DIR=/tmp/triton\n")
    said = rlbox("lint", "a b/x.sh", str(BAD), "missing.sh", "--format", "sarif")
    assert said.code == 2
    [run] = said.data["runs"]
    rules = run["tool"]["driver"]["rules"]
    rows = [(row["ruleId"], row["level"], rules[row["ruleIndex"]]["id"]) for row in run["results"]]
    assert rows[:2] == [("ray-shutdown", "error", "ray-shutdown"), ("cache-in-tmp", "note", "cache-in-tmp")]
    assert {rule for rule, *_ in rows} == {rule["id"] for rule in rules}
    assert run["results"][0]["message"]["text"].endswith("\nUse: ray stop, only in the container of your cluster")
    places = [row["locations"][0]["physicalLocation"] for row in run["results"]]
    assert places[0]["artifactLocation"] == {"uri": "a%20b/x.sh", "uriBaseId": "%SRCROOT%"}
    assert places[0]["region"] == {"startLine": 2, "startColumn": 3}
    assert places[-1]["artifactLocation"] == {"uri": BAD.as_uri()}
    assert (said.data["version"], run["columnKind"]) == ("2.1.0", "unicodeCodePoints")
    assert run["invocations"][0]["executionSuccessful"] is False
    assert "missing.sh" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    said = rlbox("lint", str(GOOD), "--format", "sarif")
    assert (said.code, said.data["runs"][0]["results"], said.err) == (0, [], "1 file: nothing found\n")
    assert "--json and --format sarif" in rlbox("lint", "--format", "sarif", "--json").err


def test_warnings_do_not_fail(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("x.sh", "pkill -f train.py\n")
    said = rlbox("lint", "x.sh")
    assert (said.code, said.err) == (0, "1 file: 1 warning\n")


def test_notes_are_shown_when_asked_for(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("x.sh", "export TRITON_CACHE_DIR=/tmp/triton\n")
    said = rlbox("lint", "x.sh")
    assert (said.code, said.out, said.err) == (0, "", "1 file: 1 note (-v shows the notes)\n")
    assert "[cache-in-tmp]" in rlbox("lint", "-v", "x.sh").out
    assert rlbox("lint", "x.sh", "--json").data["findings"][0]["severity"] == "note"


def test_an_empty_folder_has_nothing_to_say_about(rlbox: Rlbox) -> None:
    assert rlbox("lint") == Said(code=0, out="", err="")
    assert rlbox("lint", "--json").data == {"schema": 1, "files": 0, "findings": [], "unread": []}
    assert rlbox("lint", "--target", "local") == Said(code=0, out="", err="")


def test_without_files_the_specs_and_jobs(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", TARGET + '[env]\nNCCL_TIMEOUT = "600"\n')
    folder.job("own", JOB.replace('["true"]', '["ray", "shutdown"]'))
    said = rlbox("lint")
    assert said.code == 1
    assert "images/mine/target.toml:12:1: error: NCCL has no variable NCCL_TIMEOUT" in said.out
    assert "[ray-shutdown]" in said.out
    assert said.err == "2 files: 2 errors\n"


@pytest.mark.parametrize("words", [[], ["jobs"]])
def test_a_job_is_judged_by_its_targets_pins(rlbox: Rlbox, folder: Folder, words: list[str]) -> None:
    folder.target("mine", TARGET.replace("six==1.16.0", "vllm==0.20.0"))
    folder.target("old", TARGET.replace("six==1.16.0", "vllm==0.12.0"))
    job = JOB.replace('["true"]', '["bash", "-c", "export VLLM_ATTENTION_BACKEND=FLASH_ATTN"]')
    folder.job("own", job)
    folder.job("old", job.replace("mine", "old"))
    folder.job("none", job.replace("mine", "there-is-none"))
    found = {one["file"]: one["what"] for one in rlbox("lint", *words, "--json").data["findings"]}
    named = {
        os.path.relpath(name, folder.path): what.endswith("and here it is 0.20.0)") for name, what in found.items()
    }
    assert named == {"jobs/none.toml": False, "jobs/own.toml": True}


def test_what_rlbox_ships_is_clean_beside_its_own_targets(rlbox: Rlbox) -> None:
    """Each job beside the versions and the machine of its target, and all files that its programs are."""
    names = [str(CHECKOUT / name) for name in ("images", "jobs", "templates/scripts")]
    said = rlbox("lint", *names)
    assert (said.code, said.out) == (0, "")
    assert int(said.err.split()[0]) > 25


def test_without_files_a_target_is_linted_with_its_own_jobs(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine")
    folder.job("own", JOB.replace('["true"]', '["ray", "shutdown"]'))
    folder.job("other", JOB.replace('["true"]', '["ray", "shutdown"]').replace("mine", "local"))
    data = rlbox("lint", "--target", "mine", "--json").data
    assert {os.path.basename(one["file"]) for one in data["findings"]} == {"own.toml"}
    assert data["files"] == 2


def test_a_target_decides_by_its_versions(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", PINNED)
    folder.write("x.sh", "export VLLM_ATTENTION_BACKEND=FLASH_ATTN\nray start --head --storage=/s\n")
    assert rlbox("lint", "x.sh", "--json").data["findings"][0]["severity"] == "warning"
    found = rlbox("lint", "x.sh", "--target", "mine", "--json").data["findings"]
    assert [(one["rule"], one["severity"]) for one in found] == [("ray-storage", "error")]
    assert found[0]["what"].endswith("(still accepted by ray <2.48, and here it is 2.60.0)")
    assert rlbox("lint", "x.sh", "--target", "none").code == 2


def test_standard_input(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ray shutdown\n")))
    said = rlbox("lint", "-")
    assert said.code == 1
    assert said.out.startswith("<stdin>:1:1: error: ")


def test_a_folder_is_walked(rlbox: Rlbox, folder: Folder) -> None:
    for name in (
        "a/x.sh",
        "a/Dockerfile",
        "a/.git/x.sh",
        "a/node_modules/x.sh",
        "a/data.csv",
        "a/lock.json",
        "a/b/run",
    ):
        folder.write(name, "#!/bin/sh\nray shutdown\n" if "Docker" not in name else "FROM a:1\nRUN ray shutdown\n")
    folder.write("a/plain", "ray shutdown\n")
    (folder.path / "a/binary.sh").write_bytes(b"\0\1")
    data = rlbox("lint", "a", "a/x.sh", "--json").data
    assert [one["file"] for one in data["findings"]] == ["a/Dockerfile", "a/b/run", "a/x.sh"]
    assert data["unread"] == []


def test_what_cannot_be_read_is_said_once_and_the_rest_is_read(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("x.sh", "ray shutdown\n")
    (folder.path / "bin").write_bytes(b"\x7fELF\0\0")
    said = rlbox("lint", "missing.sh", "bin", "x.sh")
    assert said.code == 2
    assert "[ray-shutdown]" in said.out
    assert said.err == (
        "1 file: 1 error\n"
        "rlbox: error: missing.sh: cannot be read: No such file or directory\n"
        "  bin: is a binary file, it holds NUL bytes\n"
        "  where: rlbox lint\n"
        "  next:  give the scripts, specs or notes to check\n"
    )
    data = rlbox("lint", "missing.sh", "x.sh", "--json")
    assert (data.code, data.data["unread"]) == (2, ["missing.sh: cannot be read: No such file or directory"])
    assert rlbox("lint", "missing.sh", "--json").data["error"]["exit_code"] == 2


def test_a_hundred_megabytes_are_no_script(rlbox: Rlbox, folder: Folder) -> None:
    with (folder.path / "big.sh").open("wb") as file:
        file.truncate(100 * 2**20)
    said = rlbox("lint", "big.sh")
    assert (said.code, said.err.splitlines()[0]) == (
        2,
        "rlbox: error: big.sh: is larger than 1.0 MB, so it is not a script",
    )


def test_a_broken_spec_is_named_and_the_rest_is_read(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("broken.toml", "[env\n")
    folder.write("x.sh", "ray shutdown\n")
    said = rlbox("lint", "broken.toml", "x.sh")
    assert (said.code, "[ray-shutdown]" in said.out, "broken.toml: broken TOML" in said.err) == (2, True, True)


def test_the_examples_of_the_guide(rlbox: Rlbox, folder: Folder) -> None:
    text = (CHECKOUT / "docs/lint.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    folder.write("launch.sh", script)
    (shown,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    typed = [line[2:].partition("  #")[0] for line in shown.splitlines() if line.startswith("$ ")]
    assert len(typed) > 3
    for line in typed:
        said = rlbox(*shlex.split(line)[1:])
        assert said.code == (1 if "launch.sh" in line else 0), said.err
    assert rlbox("lint", "launch.sh").out in shown
