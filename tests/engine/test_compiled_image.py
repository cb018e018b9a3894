"""A wheel that rlbox compiled, from the lock into an image, and through a registry to another machine's store."""

from __future__ import annotations

from pathlib import Path

import pytest
from enginebox import TINY, Box, docker
from projectbox import own

COMPILED = """
[[stack.compile]]
name = "markupsafe"
version = "3.0.2"
needs = ["setuptools"]
"""
IMPORTS = "import markupsafe, markupsafe._speedups as s; print(markupsafe.__version__, s.__file__)"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_compiled_wheel_is_in_the_image_and_goes_to_another_machine(tmp_path: Path) -> None:
    box = Box(project=tmp_path / "project", data=tmp_path / "disk", extra={"RLBOX_STORE": str(tmp_path / "store")})
    box.data.mkdir()
    spec = box.project / "images/compiled/target.toml"
    spec.parent.mkdir(parents=True)
    stack = 'packages = ["six==1.16.0"]\n'
    spec.write_text(TINY.replace(stack, stack + COMPILED))
    assert box("lock", "compiled").code == 0
    refused = box("build", "compiled")
    assert (refused.code, "next:  rlbox compile compiled" in refused.err) == (2, True), refused.err
    made = box("compile", "compiled", "--json")
    assert made.code == 0, made.err
    (row,) = made.data["wheels"]
    try:
        built = box("build", "compiled", "--json")
        assert built.code == 0, built.err
        said = box("shell", "compiled", "--", "python", "-c", IMPORTS)
        assert said.code == 0, said.err
        assert said.out.split()[0] == "3.0.2"
        assert "/markupsafe/_speedups.cpython-" in said.out
        sent = box("fetch", "compiled", "--export", str(tmp_path / "inputs"))
        assert sent.code == 0, sent.err
        other = Box(project=box.project, data=box.data, extra={"RLBOX_STORE": str(tmp_path / "other")})
        assert other("build", "compiled", "--hermetic", "--rebuild").code != 0
        taken = other("fetch", "compiled", "--import", str(tmp_path / "inputs"))
        assert taken.code == 0, taken.err
        again = other("compile", "compiled", "--json")
        assert [(wheel["state"], wheel["sha256"]) for wheel in again.data["wheels"]] == [
            ("in the store", row["sha256"])
        ]
        hermetic = other("build", "compiled", "--hermetic", "--rebuild", "--json")
        assert hermetic.code == 0, hermetic.err
        assert hermetic.data["id"] == built.data["id"]
    finally:
        docker("image", "rm", "--force", own("compiled"))
