"""A fix of somebody's own that cannot be baked is corrected as the advice says, and then it is baked."""

from __future__ import annotations

import pytest
from fakes import ON_IMAGE, Folder
from following import Follow

FIX = """
title = "x"
why = "y"
source = ["z"]
remedy = "r"
[bake]
{bake}
"""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ('env = { A = "{{ nothing }}" }', 'env = { A = "{{ site }}" }'),
        ('path = { A = ["x"] }', 'path = { A = ["/x"] }'),
        (
            'refuse = [{ if = "x(", says = "s", next = "n" }]',
            'refuse = [{ if = "false", says = "s", next = "n" }]',
        ),
        ('env = { RLBOX_ONE = "1" }', 'env = { RLBOX_ONE = "2" }'),
    ],
    ids=["template", "folder", "condition", "agreement"],
)
def test_a_fix_is_corrected(follow: Follow, folder: Folder, wrong: str, right: str) -> None:
    folder.target("mine", ON_IMAGE)
    folder.write("templates/fixes/another.toml", FIX.format(bake='env = { RLBOX_ONE = "2" }'))
    own = folder.write("templates/fixes/own.toml", FIX.format(bake=wrong))
    step = follow("fixes", "explain", "mine")
    own.write_text(FIX.format(bake=right))
    follow.again(step)
