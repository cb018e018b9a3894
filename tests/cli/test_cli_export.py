"""`rlbox export`."""

from __future__ import annotations

import pytest
from fakes import Folder, Rlbox

pytestmark = pytest.mark.usefixtures("remembering")
COMPOSE = "# Rendered by `rlbox export mine --format compose` from images/mine/target.toml"
DIGEST = f"registry.example/team/mine@sha256:{'0' * 64}"
FORMS = ("slurm", "skypilot", "dstack", "kuberay", "devcontainer")
TWO_NODES = """
title = "two nodes"
target = "mine"
secrets = ["HF_TOKEN"]
[params]
count = { default = 2, help = "nodes" }
head = { default = "here", help = "address of the first" }
[cluster]
params = { count = "nodes", head = "head" }
ports = { ray = "gcs" }
[ports]
ray = 8100
[[stages]]
name = "one"
title = "one"
secrets = ["HF_TOKEN"]
command = ["true"]
"""


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


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_a_shipped_job_runs_it_in_the_image(rlbox: Rlbox, form: str) -> None:
    said = rlbox("export", "grpo", "--format", form, "--image", DIGEST, "--profile", "debug", "--set", "lr=2e-6")
    assert said.code == 0, said.err
    assert "rlbox run grpo --place here --profile debug --set lr=2e-6" in said.out
    assert "0" * 64 in said.out
    assert "HF_TOKEN" in said.out
    assert "/mnt/project" not in said.out  # the image has all that rlbox ships


@pytest.mark.parametrize("form", FORMS[:3])
def test_a_job_of_two_nodes_brings_its_project_and_its_head(
    rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted-5ecret-value")
    folder.target("mine")
    folder.job("two", TWO_NODES)
    said = rlbox("export", "two", "--format", form, "--image", DIGEST)
    assert said.code == 0, said.err
    for words in ('--set head="$RLBOX_HEAD"', "ray-start worker --address=", "/mnt/project", "HF_TOKEN"):
        assert words in said.out
    assert "planted" not in said.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("two", "--format", "slurm"), 2, "needs --image with a digest"),
        (("two", "--format", "dstack", "--image", "registry.example/team/mine:v1"), 2, "needs --image with a digest"),
        (("two", "--format", "devcontainer"), 2, "--format devcontainer cannot start job two on 2 nodes"),
        (("gkd", "--format", "slurm", "--image", DIGEST, "--set", "nodes=2"), 2, "cannot start job gkd on 2 nodes"),
        (("mine", "--format", "kuberay", "--image", DIGEST), 2, "target mine has no Ray"),
        (("mine", "--format", "slurm", "--image", DIGEST, "--profile", "x"), 2, "--profile and --set need a job"),
        (("mine", "--format", "compose", "--profile", "x"), 2, "do not go with --format compose"),
    ],
)
def test_what_cannot_be_exported(rlbox: Rlbox, folder: Folder, words: tuple[str, ...], code: int, says: str) -> None:
    folder.target("mine")
    folder.job("two", TWO_NODES)
    said = rlbox("export", *words)
    assert (said.code, said.out) == (code, "")
    assert says in said.err
