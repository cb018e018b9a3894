"""Fixes in a built image: what they bake is there, their checks end a build, and a run starts only where they hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from enginebox import Box, docker
from fakes import load_cases
from following import Follow
from projectbox import own

CASES = load_cases("engine", "test_fixed_image")
TEXT = CASES["TEXT"]
BAKED = CASES["BAKED"]
JOB = """
title = "one stage"
target = "tiny"
[[stages]]
name = "only"
title = "the only stage"
command = ["true"]
"""


def write_fix(box: Box, name: str, text: str) -> None:
    folder = box.project / "templates/fixes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(TEXT + text)


def inside(script: str, *words: str) -> str:
    return docker("run", "--rm", "--network=none", *words, own("tiny"), "sh", "-c", script)


def test_what_a_fix_bakes_is_in_the_image(tiny: Box) -> None:
    text = BAKED.replace("say-{{ 'x' }}", "say-x")
    write_fix(tiny, "mine", text + '[check]\nrun = \'test "$HOOKED" = "by the hook" && test -d /opt/fixed/link\'\n')
    built = tiny("build", "tiny")
    assert built.code == 0, built.err
    shown = inside('say-x; echo "$BAKED|$LIBRARY_PATH|$HOOKED"; readlink /opt/fixed/link; stat -c %Y /opt/fixed/link')
    assert shown.splitlines() == [
        "said by the hook", 'it\'s /data $HOME "quoted"|/one:/two|by the hook', "../venv/lib", "1735689600",
    ]  # fmt: skip
    assert inside('echo "$HOOKED"', "--env=HOOKED=mine") == "mine\n"
    labels = json.loads(docker("image", "inspect", own("tiny"), "--format={{json .Config.Labels}}"))
    assert "mine" in labels["rlbox.fixes"].split()
    manifest = json.loads(inside("cat /opt/rlbox/share/fixes.json"))
    assert [row["title"] for row in manifest["fixes"] if row["id"] == "mine"] == ["one repair of each kind"]
    shell = tiny("shell", "tiny", "--", "sh", "-c", "df -k /dev/shm | tail -1")
    assert str(512 << 10) in shell.out
    again = tiny("build", "tiny")
    assert "unchanged" in again.out


def test_a_path_keeps_what_the_base_has(tiny: Box, tmp_path: Path) -> None:
    write_fix(tiny, "mine", '[bake.path]\nLIBRARY_PATH = ["/one"]\n')
    assert tiny("render", "tiny").code == 0
    [line] = re.findall(r"^ENV LIBRARY_PATH=.*$", (tiny.project / "images/tiny/Dockerfile").read_text(), re.M)
    for base, wanted in (("ENV LIBRARY_PATH=/base", "/one:/base"), ("ENV OTHER=1", "/one")):
        text = f"FROM {own('tiny')}\n{base}\n{line}\n"
        tag = f"rlbox-test-path-{os.getpid()}"
        subprocess.run(["docker", "build", "--quiet", f"--tag={tag}", "-"], input=text, text=True, check=True)
        try:
            assert docker("run", "--rm", tag, "sh", "-c", 'echo "$LIBRARY_PATH"').strip() == wanted
        finally:
            docker("rmi", "--force", tag)


def test_a_check_that_fails_ends_the_build(tiny: Box, follow: Follow) -> None:
    follow.rlbox = tiny
    write_fix(tiny, "absent", "[check]\nrun = 'echo \"no such thing\"; exit 1'\n")
    for _ in range(2):  # the image that failed is not taken for an unchanged one
        result = tiny("build", "tiny")
        assert result.code == 1
        assert result.err.splitlines()[-4:] == [
            f"rlbox: error: 1 of the fixes baked into {own('tiny')} do not hold, so it lost its tag",
            "  absent: no such thing",
            "  where: rlbox build",
            "  next:  rlbox fixes show absent",
        ]
    step = follow("build", "tiny")
    assert "build the image again" in follow.types(step).out
    assert docker("images", "--quiet", own("tiny")) == ""
    (tiny.project / "templates/fixes/absent.toml").unlink()
    follow.again(step)


def test_a_run_starts_only_where_the_fixes_hold(tiny: Box) -> None:
    write_fix(tiny, "needs-more", '[check]\nrun = \'echo "too little of it"; exit 1\'\nwhen = ["run"]\n')
    tiny.job("one", JOB)
    assert tiny("build", "tiny").code == 0
    result = tiny("run", "one")
    assert result.code == 5, result.err
    assert "fix needs-more does not hold in this container: too little of it" in result.err
    stage = tiny.state()["stages"][0]
    assert (stage["state"], stage["cause"]["kind"]) == ("failed", "fix")
    assert stage["cause"]["next_step"] == "build the image again"
