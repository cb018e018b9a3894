"""Helper programs in containers: components of an image, files of its layers in memory."""

from __future__ import annotations

import json

import pytest
from enginebox import Box


def test_components_of_a_target_are_those_of_its_image(tiny: Box) -> None:
    result = tiny("components", "tiny", "--json")
    said = json.loads(result.out)
    assert (result.code, said["failed"], said["python"]) == (0, [], "/opt/venv/bin/python")
    assert {part["state"] for part in said["parts"]} <= {"ok", "absent", "no-gpu"}


@pytest.mark.slow
def test_all_parts_of_the_default_target_work(local: Box) -> None:
    result = local("components", "local", "--json", "--timeout", "540")
    assert result.code == 0, result.out
    states = {part["name"]: part["state"] for part in json.loads(result.out)["parts"]}
    assert {name for name, state in states.items() if state == "ok"} >= {
        "torch", "Ray", "vLLM", "TRL", "transformers", "datasets",
    }  # fmt: skip
    assert states["torch on GPUs"] == "absent"
