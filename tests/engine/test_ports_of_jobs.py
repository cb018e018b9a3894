"""The ports of `holdem`, `grpo`, `gkd` and `xdan` in place, tried by a stranger who reaches the machine over a network.

The jobs are the shipped ones with their own programs and services, Ray is real; in the place of what wants a GPU stand
programs that bind what it binds, by the sources of the versions that the jobs are written for (`trainers/`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from attackbox import listening_at, try_all
from enginebox import wait_until
from portbox import HOST, BoxOn, Networks, lay, missing, networks, wait_for_stand_in

HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
STACK = Path.home() / ".cache/rlbox/places/local/opt/venv/bin/python"
PLANTED = "listens on 0.0.0.0:4444, which the job does not declare"


@pytest.fixture
def cable() -> Iterator[Networks]:
    if why := missing():
        pytest.skip(why)
    with networks() as made:
        yield made


@pytest.fixture
def box(cable: Networks, tmp_path: Path) -> BoxOn:
    for name in ("project/jobs", "data"):
        (tmp_path / name).mkdir(parents=True)
    return BoxOn(project=tmp_path / "project", data=tmp_path / "data", pid=cable.run)


def model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + bytes(4))


def holdem(box: BoxOn) -> list[str]:
    lay(box.data / "slime", slime_train="train.py")
    (box.data / "slime/slime").mkdir()
    return ["--from=smoke", "--force", "--set", f"source={box.data}/slime"]


def grpo(box: BoxOn) -> list[str]:
    lay(box.lay_job("grpo"), main_ppo="verl/trainer/main_ppo.py")
    (box.data / "grpo/data").mkdir(parents=True)
    (box.data / "grpo/data/train.parquet").write_text("rows")
    return ["--from=train", "--force", "--set", "ray_cpus=4"]


def gkd(box: BoxOn) -> list[str]:
    lay(box.lay_job("gkd"), main_ppo="verl/trainer/main_ppo.py")
    (box.data / "gkd").mkdir()
    (box.data / "gkd/train.parquet").write_text("rows")
    return ["--from=distill", "--force"]


def xdan(box: BoxOn) -> list[str]:
    lay(box.lay_job("xdan"), train_ppo_ray="openrlhf/cli/train_ppo_ray.py")
    (box.data / "datasets").mkdir()
    rows = [{"message": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}]
    (box.data / "datasets/xDAN-Agentic-openMath-r1-chatml.json").write_text(json.dumps(rows))
    model(box.data / "models/xDAN-L2-Qwen25-32b-Instruct")
    return ["--profile=one-node"]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a job listens on: `closed` on loopback, `open` for others."""

    prepare: Callable[[BoxOn], list[str]]
    stage: str
    closed: frozenset[int]
    open: frozenset[int]


SERVED = {
    "holdem": Served(
        prepare=holdem,
        stage="smoke",
        closed=frozenset({8101, 8130}),
        open=frozenset({8100, 15000, 15001, 15002, 20123}),
    ),
    "grpo": Served(prepare=grpo, stage="train", closed=frozenset({8265}), open=frozenset()),
    "gkd": Served(prepare=gkd, stage="distill", closed=frozenset({8265}), open=frozenset()),
    "xdan": Served(prepare=xdan, stage="train", closed=frozenset({8101}), open=frozenset({8100, 8115, 5001})),
}


def token_of(cable: Networks) -> str:
    """Return the token of the run's Ray, from the environment of one of its processes."""
    for pid in cable.processes():
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"RAY_AUTH_TOKEN="):
                return word.partition(b"=")[2].decode()
    raise AssertionError("nobody has a token")


def audited(box: BoxOn, cable: Networks, name: str) -> None:
    """Run a job, try all of its ports from the other network, and plant a listener beside them."""
    served, planted, ours = SERVED[name], box.data / "planted", box.data / "ours"
    words = served.prepare(box)
    process = box.start("run", name, "--target", "local", "--place", "here", *words)
    try:
        log = wait_for_stand_in(box, process, served.stage)
        ports = listening_at(cable.run)
        said = {int(port) for row in re.findall(r"ports (.*)", log) for port in re.findall(r"\d+", row)}
        assert said <= ports.keys(), "the stand-in listens where it says"
        assert served.closed <= {port for port, reached in ports.items() if not reached}, ports
        assert served.open <= {port for port, reached in ports.items() if reached}, ports
        python = [*Networks.enter(cable.stranger), str(STACK)]
        done, refused = try_all(python, HOST, str(planted), sorted(ports))
        assert done == [], refused
        assert {refused[str(port)] for port in ports if not ports[port]} == {"ConnectionRefusedError"}
        asking = sorted(int(port) for port, how in refused.items() if "401" in str(how) or "Auth" in str(how))
        done, refused = try_all(python, HOST, str(planted), asking, "0123456789abcdef0123456789abcdef")
        assert done == [], refused
        # the same deeds are done where they may be: so the stranger asked right
        done, _ = try_all(python, HOST, str(ours), asking, token_of(cable))
        assert [row for row in done if "KV write" in row], done
        assert [row for row in done if "/api/job_agent/jobs/" in row], done
        wait_until(ours.exists, "a job with the run's own token")
        taking = int(log.rpartition("everything on 127.0.0.1:")[2].split()[0])
        done, _ = try_all([*Networks.enter(cable.run), *python[-1:]], "127.0.0.1", str(ours), [taking])
        assert {row.split()[1].partition("/")[2].rstrip(":") for row in done} == {"collective_rpc", "run_code"}
        (box.data / "plant").touch()
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, err
    assert re.search(rf"of stage {served.stage} {PLANTED}|of service ray {PLANTED}", err), err
    assert not planted.exists()
    wait_until(lambda: cable.processes() == [], "the end of all that the run started")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SERVED))
def test_no_stranger_gives_commands_and_a_planted_listener_ends_the_stage(
    box: BoxOn, cable: Networks, name: str
) -> None:
    audited(box, cable, name)
