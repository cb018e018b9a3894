"""Platforms as data: each start script within its field's limit, in the form that the field takes."""

from __future__ import annotations

import base64
import gzip
import random
import shlex
import subprocess

import pytest
import yaml
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.image.forms import render_onstart
from rlbox.target.platform import PLATFORM_FILES, load_platform
from rlbox.target.target import load_target

TEMPLATES = [CHECKOUT / "templates"]
SHIPPED = Project(folder=CHECKOUT)
VAST_TARGET = load_target(SHIPPED, "vast-5090").target


def unpack_script(platform_name: str, text: str) -> str:
    """Return the script of a field's text; a start command must be one line of shell words."""
    packed = text
    if platform_name == "cloud-init":
        (file,) = yaml.safe_load(text)["write_files"]
        packed = file["content"]
    elif platform_name == "runpod":
        assert text.count("\n") == 1
        packed = shlex.split(text)[2].partition("echo ")[2].partition(" ")[0]
    return packed if packed.startswith("#!") else gzip.decompress(base64.b64decode(packed)).decode()


@pytest.mark.parametrize("name", PLATFORM_FILES)
@pytest.mark.parametrize("target_name", SHIPPED.own_pack_and_shipped_target_files())
@pytest.mark.allow("processes")
def test_script_of_each_shipped_target_fits_and_is_shell(name: str, target_name: str) -> None:
    target, platform = load_target(SHIPPED, target_name).target, load_platform(name)
    made = render_onstart(target, platform, TEMPLATES)
    assert made.encoding == "plain"
    assert not platform.script.limit_bytes or made.field_bytes <= platform.script.limit_bytes
    assert unpack_script(name, made.field_text) == made.script
    subprocess.run(["dash", "-n"], input=made.script, text=True, check=True)


@pytest.mark.parametrize("name", ["runpod", "cloud-init"])
def test_script_above_the_limit_is_packed_or_rejected(name: str) -> None:
    platform = load_platform(name)
    limit = platform.script.limit_bytes
    made = render_onstart(VAST_TARGET, platform, TEMPLATES, "echo again and again\n" * 8000)
    assert made.field_bytes <= limit < len(made.script)
    assert unpack_script(name, made.field_text) == made.script
    noise = random.Random(0).randbytes(150_000).hex()
    with pytest.raises(SpecError, match=rf"packed, and the on-start field takes {limit}\n"):
        render_onstart(VAST_TARGET, platform, TEMPLATES, f"# {noise}\n")
