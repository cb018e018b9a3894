"""`vast-5090` built for real, from apt packages and wheels alone, without a GPU. Many gigabytes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from bigimage import BigImage, built, cn_hosts, empty_box
from enginebox import CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

TARGET = "vast-5090"
IMPORTED = ("torch", "vllm", "ray", "verl")
# Files of upstream may name a mirror: such a one has the sha256 that its wheel says, or lies in a git tree.
LEAKS = """
import base64, csv, hashlib, json, pathlib, subprocess, sys
hosts, trees = json.loads(sys.argv[1]), tuple(json.loads(sys.argv[2]))
words = ["grep", "-rlaF", *(f"-e{host}" for host in hosts), "/"]
words += [f"--exclude-dir={name}" for name in ("proc", "sys", "dev")]
hits = subprocess.run(words, capture_output=True, text=True).stdout.split("\\n")
known = {}
for record in pathlib.Path("/opt").glob("*/lib/python*/site-packages/*.dist-info/RECORD"):
    for name, digest, _ in csv.reader(record.read_text().splitlines()):
        known[str((record.parents[1] / name).resolve())] = digest
def upstream(path):
    data = pathlib.Path(path).read_bytes()
    digest = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return known.get(path) == digest
print(json.dumps([path for path in hits if path and not path.startswith(trees) and not upstream(path)]))
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigImage]:
    """The image, built from what rlbox ships, and taken away afterwards."""
    with built(TARGET, empty_box(tmp_path_factory.mktemp(TARGET))) as image:
        print(image.said)
        print(f"the disk lost {image.most_gib:.1f} GiB at worst")
        yield image


def test_it_imports_what_is_locked(image: BigImage) -> None:
    locked = image.locked()
    assert image.versions(*IMPORTED) == {name: locked[name] for name in IMPORTED}


def test_the_component_test_passes_without_a_gpu(image: BigImage) -> None:
    report = json.loads(image.run("rlbox", "components", "--json", "--timeout", "1500", timeout_s=1600))
    assert [part for part in report["parts"] if part["state"] == "failed"] == []
    assert {"ok", "no-gpu"} <= {part["state"] for part in report["parts"]}


def test_size_and_time_are_told_by_layer(image: BigImage) -> None:
    rows = {row["part"]: row for row in image.data["layers"]}
    assert {"os", "runtime", "torch.torch", "engine.vllm", "framework", "fixes", "rlbox"} <= set(rows)
    assert sum(row["size"] for row in rows.values()) > 5e9
    assert "torch.torch" in image.said


def test_no_mirror_of_a_region_is_in_any_file(image: BigImage) -> None:
    trees = [tree["into"] for tree in _git(image)]
    found = json.loads(image.run("python", "-c", LEAKS, json.dumps(sorted(cn_hosts())), json.dumps(trees)))
    assert found == []


def _git(image: BigImage) -> list[dict[str, str]]:
    from rlbox.config.toml_files import load_toml

    return load_toml(CHECKOUT / f"images/{image.target}/target.toml")["git"]
