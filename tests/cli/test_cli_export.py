"""`rlbox export`."""

from __future__ import annotations

import pytest
from fakes import Folder, Rlbox

pytestmark = pytest.mark.usefixtures("remembering")
COMPOSE = "# Rendered by `rlbox export mine --format compose` from images/mine/target.toml"


def test_it_prints(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine")
    said = rlbox("export", "mine", "--format", "compose")
    assert said.code == 0
    assert said.out.startswith(COMPOSE)
    assert said.err == "next: docker compose --file FILE run --rm mine COMMAND\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--format", "apptainer"), 2, "--format apptainer needs --image"),
        (("--format", "compose", "--image", "a.tar"), 2, "a.tar is an archive, and Compose starts none"),
    ],
)
def test_what_is_refused(rlbox: Rlbox, folder: Folder, words: tuple[str, ...], code: int, says: str) -> None:
    folder.target("mine")
    said = rlbox("export", "mine", *words)
    assert said.code == code
    assert says in said.err
    assert said.out == ""
