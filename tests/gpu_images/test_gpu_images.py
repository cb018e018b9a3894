"""GPU targets built for real from what rlbox ships, without a GPU. Many gigabytes each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from bigimage import BigImage, built, cn_hosts, empty_box
from enginebox import CHECKOUT

from rlbox.config.toml_files import load_toml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

IMPORTED = {
    "a800-cn": ("torch", "ray", "sglang"),
    "cluster-2node": ("torch", "vllm", "ray", "deepspeed"),
    "vast-5090": ("torch", "vllm", "ray", "verl"),
}
STEP = """
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
weight = torch.nn.Parameter(torch.ones(100))
optimizer = DeepSpeedCPUAdam([weight], lr=0.5)
weight.grad = torch.ones(100)
optimizer.step()
print(f"{weight[0].item():.1f}")
"""
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


def repositories(target: str) -> dict[str, str]:
    """Address of each repository of a target, to the folder that it has in the image."""
    return {row["url"]: row["into"] for row in load_toml(CHECKOUT / f"images/{target}/target.toml").get("git", ())}


@pytest.fixture(scope="module", params=IMPORTED)
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigImage]:
    """The image, built from what rlbox ships, and taken away afterwards."""
    target: str = request.param
    with built(target, empty_box(tmp_path_factory.mktemp(target))) as image:
        print(f"{image.said}\nthe disk lost {image.most_gib:.1f} GiB at worst")
        yield image


def only(image: BigImage, target: str) -> None:
    """Skip for the images of other targets."""
    if image.target != target:
        pytest.skip(f"about {target}")


def test_image_imports_what_is_locked(image: BigImage) -> None:
    names, locked = IMPORTED[image.target], image.locked()
    assert image.versions(*names) == {name: locked[name] for name in names}


def test_components_pass_without_a_gpu(image: BigImage) -> None:
    report = json.loads(image.run("rlbox", "components", "--json", "--timeout", "1500", timeout_s=1600))
    assert [part for part in report["parts"] if part["state"] == "failed"] == []
    assert {"ok", "no-gpu"} <= {part["state"] for part in report["parts"]}


def test_git_trees_are_in_the_image(image: BigImage) -> None:
    only(image, "a800-cn")
    assert {"megatron", "train.py"} <= set(image.run("ls", *repositories(image.target).values()).split())


def test_slime_preloads_a_library_for_cuda_13(image: BigImage) -> None:
    only(image, "a800-cn")
    hook = "/opt/venv/lib/python3*/site-packages/torch_memory_saver_hook_mode_preload_cu12*.so"
    assert "[libcudart.so.13]" in image.run("sh", "-c", f"readelf -d {hook}")


def test_deepspeed_optimizer_compiles_and_steps_on_the_cpu(image: BigImage) -> None:
    only(image, "cluster-2node")
    assert image.run("python", "-c", STEP, timeout_s=1200).split()[-1] == "0.5"


def test_every_cuda_library_is_linked(image: BigImage) -> None:
    """DeepSpeed links libcurand where it sees a GPU."""
    only(image, "cluster-2node")
    link = "gcc -x c - -Wl,--no-as-needed -lcurand -lcublas -lnvrtc -o /tmp/linked"
    image.run("sh", "-c", f"echo 'int main(void) {{ return 0; }}' | {link}")


def test_build_tells_size_by_layer(image: BigImage) -> None:
    only(image, "vast-5090")
    rows = {row["part"]: row for row in image.data["layers"]}
    assert {"os", "runtime", "torch.torch", "engine.vllm", "framework", "fixes", "rlbox"} <= set(rows)
    assert sum(row["size"] for row in rows.values()) > 5e9
    assert "torch.torch" in image.said


def test_no_mirror_of_a_region_is_in_any_file(image: BigImage) -> None:
    only(image, "vast-5090")
    trees = list(repositories(image.target).values())
    found = json.loads(image.run("python", "-c", LEAKS, json.dumps(sorted(cn_hosts())), json.dumps(trees)))
    assert found == []
