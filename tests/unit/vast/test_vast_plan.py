"""vast.ai as values: the on-start script within its limit, docker options, offers, requests."""

from __future__ import annotations

import base64
import gzip
import subprocess
from typing import Any

import pytest
from fakes import CHECKOUT
from vastbox import recorded

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.errors import SpecError, WorkFailed
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.image.forms import SANDBOX_PORT, render_onstart
from rlbox.target.platform import load_platform
from rlbox.target.target import Target, load_target
from rlbox.vast.offers import convert_to_vast_gpu_name, make_offer_filter, parse_offer, require_fitting_offers
from rlbox.vast.rental import parse_docker_options_to_vast_env

VAST = load_platform("vast")
TEMPLATES = [CHECKOUT / "templates"]
SHIPPED = Project(folder=CHECKOUT)


def target(**over: Any) -> Target:
    """The shipped target with keys of its tables replaced."""
    data = load_target(SHIPPED, "vast-5090").target.model_dump(mode="json")
    for table, values in over.items():
        data[table] = {**data[table], **values}
    return validate_spec(Target, data, "a test")


def test_the_script_fits_as_it_is() -> None:
    made = render_onstart(target(), VAST, TEMPLATES)
    assert (made.encoding, made.field_text) == ("plain", made.script)
    assert made.field_characters == made.field_bytes == len(made.field_text) <= VAST.script.limit_bytes == 4048


def test_a_long_script_is_packed_and_one_too_long_refused() -> None:
    added = "".join(f"echo 'a step of what I do, number {number % 7}'\n" for number in range(500))
    assert len(added) > 16_384
    made = render_onstart(target(), VAST, TEMPLATES, added)
    assert (made.encoding, made.field_bytes <= VAST.script.limit_bytes) == ("gzip", True)
    packed = made.field_text.partition("<<'END'")[2].partition("\n")[2].rpartition("END")[0]
    assert gzip.decompress(base64.b64decode(packed)).decode() == made.script
    assert "what I do, number 6" in made.script
    noise = "".join(f"# {hash(str(number)):x}\n" for number in range(1200))
    with pytest.raises(SpecError, match=r"^the script has \d+ bytes, \d+ packed, and the on-start field takes 4048"):
        render_onstart(target(), VAST, TEMPLATES, noise)


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.allow("processes")
def test_the_script_is_shell(shell: str) -> None:
    for added in ("", "echo 'it is' \"so\"\n"):
        made = render_onstart(target(), VAST, TEMPLATES, added)
        done = subprocess.run([shell, "-n"], input=made.field_text, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_sandbox_has_the_port_of_its_fix() -> None:
    fixes = [fix for fix in load_fix_catalogue(SHIPPED) if fix.id == "sandbox-service"]
    texts = [file.text for file in render_fixes_or_raise_refusal(fixes, target(), {"sandboxfusion": "1"}).files]
    assert [f"{SANDBOX_PORT}" in text for text in texts] == [True, True]


def options(text: str, mode: str = "ssh") -> dict[str, str]:
    return parse_docker_options_to_vast_env(target(vast={"options": text, "mode": mode}))


def test_options_become_the_platforms_object() -> None:
    text = "-e A=1 --env=B='x y' -p 8000:8000 -p70000:70000/udp -h box -n mine -eC=a=b"
    ports = {"-p 8000:8000": "1", "-p 70000:70000/udp": "1"}
    assert options(text) == {"A": "1", "B": "x y", "C": "a=b", **ports, "-h": "box", "-n mine": "1"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--shm-size 16g", "--shm-size 16g: ignored by vast.ai, it takes -e, -p, -h and -n alone"),
        ("--ulimit=memlock=-1", "--ulimit=memlock=-1: ignored by vast.ai"),
        ("--privileged -p 1:1", "--privileged: ignored by vast.ai"),
        ("-v /a:/b", "-v /a:/b: ignored by vast.ai"),
        ("-e TOKEN=0123456789abcdef", "looks like a secret"),
        ("stray", "stray: ignored by vast.ai"),
        ("-p 22:22", "-p 22:22: 22 is the platform's own in ssh mode"),
        ("-p 8000", "-p 8000: PORT:PORT is taken"),
        ("-p 127.0.0.1:80:80", "-p 127.0.0.1:80:80: PORT:PORT is taken"),
        ("-e A", "-e A: a value is needed, NAME=VALUE"),
        ("-e 1A=2", "-e 1A=...: not the name of a variable"),
        ("-e A=" + "x" * 256, "-e A=...: 257 characters, and 256 are taken"),
        ("-e 'A", "No closing quotation"),
    ],
)
def test_options_that_the_platform_ignores_are_refused(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        options(text)
    assert told in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        options("--rm -it --ulimit=nofile=1 -p 8080:8080", mode="jupyter")
    assert [line.split(":")[0] for line in caught.value.what.splitlines()] == [
        "--rm -it --ulimit=nofile=1",
        "  -p 8080",
    ]
    assert caught.value.where == "images/vast-5090/target.toml: vast.options"


def test_needs_follow_from_the_target() -> None:
    ports = {"-p 1:1": "1", "-p 2:2": "1"}
    assert make_offer_filter(target(disk={"need_gib": 400.0}), ports, 1.5).to_query() == (
        "num_gpus=4 gpu_name=RTX_5090 gpu_ram>=31 cuda_max_good>=13.0 disk_space>=400 cpu_cores_effective>=16"
        " cpu_ram>=240 reliability>=0.95 direct_port_count>=3 dph_total<=1.5"
    )
    with pytest.raises(SpecError, match="names no GPU"):
        make_offer_filter(target(hardware={"gpu": ""}), {})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"),
    ],
)
def test_names_of_gpus(name: str, told: str) -> None:
    assert convert_to_vast_gpu_name(name) == told


def test_each_recorded_offer_is_judged() -> None:
    """By what the platform's filter does not know; offers that it keeps back are none of these."""
    rows = [row for row in recorded("offers") if row["id"] <= 4100004]
    needs = make_offer_filter(target(vast={"max_price": 2.5}), {})
    fitting = require_fitting_offers(rows, needs)
    assert [(offer.id, round(offer.price, 3)) for offer in fitting] == [(4100002, 1.797), (4100001, 1.997)]
    with pytest.raises(WorkFailed) as refused:
        require_fitting_offers([row for row in rows if row["id"] > 4100002], needs)
    assert "offer 4100003: 48.0 GB of memory in its share, 240.0 GB needed" in refused.value.what
    assert "offer 4100004: $2.842 an hour, at most $2.5" in refused.value.what


def test_a_price_is_that_of_the_disk_that_is_rented() -> None:
    row = {"id": 1, "dph_total": 2.0, "storage_total_cost": 0.01, "storage_cost": 0.36}
    assert parse_offer(row, 400).price == pytest.approx(2.19)
    assert parse_offer(row, 400).storage == pytest.approx(0.2)
