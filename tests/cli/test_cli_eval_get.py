"""`rlbox eval get`: results and the best export come here, from this machine, over ssh and from an instance."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import instancebox
import pytest
import test_cli_eval as judging
from fakes import Folder, Rlbox, tree
from following import Follow
from instancebox import NUMBER, SSH
from playbox import Player, judge_argv, playing
from vastbox import Platform

from rlbox.cli.root import run_root
from rlbox.evaluation.files import BEST_FILE, read_result_export_path, read_results, write_json
from rlbox.evaluation.selection import build_selection_rule, choice_to_json, choose_checkpoint

pytestmark = pytest.mark.allow("processes", "sockets")
sandbox_url, platform, instance = judging.sandbox_url, instancebox.platform, instancebox.disk
RUN = "sft-20260101-080000-aaaa"
RESULTS, EXPORT = "work/outputs/phase1", "ckpts/global_step_200/huggingface"


def plan(data: str) -> dict[str, object]:
    """A plan whose gate asks for results, as those of the job sft."""
    files = [{"path": f"{data}/{RESULTS}/eval_history.jsonl"}, {"path": f"{data}/{RESULTS}/best_checkpoint.json"}]
    return {"paths": {"data": data}, "stages": [{"files": []}, {"files": files}]}


@pytest.fixture(scope="module")
def judged(sandbox_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data disk with a run that judged two checkpoints, the later one being the better."""
    disk = judging.lay(tmp_path_factory.mktemp("judged"))
    (disk / "ckpts").mkdir()
    for step, answers in ((100, judging.every_third), (200, judging.right)):
        (disk / f"global_step_{step}").rename(disk / f"ckpts/global_step_{step}")
        shard = disk / f"ckpts/global_step_{step}/huggingface/more.bin"
        shard.write_bytes(os.urandom(3 << 20))
        with playing(Player(answers)) as player:
            more = ("--out", f"{disk}/{RESULTS}")
            assert run_root(judge_argv(disk, shard.parent, player.url, sandbox_url, *more)) == 0
    choice = choose_checkpoint(read_results(disk / RESULTS), rule=build_selection_rule(["adding"]))
    model = read_result_export_path(disk / RESULTS / choice.result.name)
    write_json(disk / RESULTS / BEST_FILE, choice_to_json(choice) | {"model": model})
    (disk / f"runs/{RUN}").mkdir(parents=True)
    (disk / f"runs/{RUN}/plan.json").write_text(json.dumps(plan(str(disk))))
    return disk


def lay(judged: Path, disk: Path) -> None:
    """Lay that data disk at another place, whose paths are its own then."""
    shutil.copytree(judged, disk, dirs_exist_ok=True)
    for path in (*disk.glob(f"{RESULTS}/*/run_info.json"), disk / RESULTS / "best_checkpoint.json"):
        path.write_text(path.read_text().replace(str(judged), str(disk)))
    (disk / f"runs/{RUN}/plan.json").write_text(json.dumps(plan(str(disk))))


@pytest.fixture
def disk(judged: Path, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data disk of this machine; the working folder is an empty project."""
    lay(judged, tmp_path / "data")
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def ssh(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An engine on another machine, which is a shell of this one."""
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@far:2200")
    return program


def same(there: Path, here: Path) -> bool:
    """Whether a folder has the files of another."""
    names = [path.relative_to(there) for path in there.rglob("*") if path.is_file()]
    return bool(names) and all((there / name).read_bytes() == (here / name).read_bytes() for name in names)


def test_the_results_and_the_best_export_come_here(disk: Path, folder: Folder, rlbox: Rlbox) -> None:
    said = rlbox("eval", "get", RUN, "--best")
    assert said.code == 0, said.err
    home = folder.path / RUN
    assert said.out == f"results: {home}/{RESULTS}\nbest checkpoint: step_200, {home}/{EXPORT}\n"
    assert same(disk / RESULTS, home / RESULTS)
    assert same(disk / EXPORT, home / EXPORT)
    assert not (home / "ckpts/global_step_100").exists()
    again = rlbox("eval", "get", RUN, "--best", "--json").data
    assert (again["brought"], again["best"]["step"], again["troubles"]) == (0, 200, [])
    assert again["files"] > 10


def test_results_alone_and_by_the_beginning_of_a_name(disk: Path, folder: Folder, rlbox: Rlbox) -> None:
    said = rlbox("eval", "get", "sft", "--to", "here", "--json")
    assert (said.code, said.data["best"]) == (0, None)
    assert same(disk / RESULTS, folder.path / "here" / RESULTS)
    assert not (folder.path / "here/ckpts").exists()


def test_paths_of_a_container_are_those_of_its_data_disk(disk: Path, folder: Folder, rlbox: Rlbox) -> None:
    (disk / f"runs/{RUN}/plan.json").write_text(json.dumps(plan("/data")))
    path = disk / RESULTS / "best_checkpoint.json"
    path.write_text(path.read_text().replace(str(disk), "/data"))
    said = rlbox("eval", "get", RUN, "--best")
    assert said.code == 0, said.err
    assert same(disk / EXPORT, folder.path / RUN / EXPORT)


def test_what_changed_there_comes_again(disk: Path, folder: Folder, rlbox: Rlbox) -> None:
    assert rlbox("eval", "get", RUN, "--best").code == 0
    notes = disk / RESULTS / "step_100/metrics.json"
    notes.write_text("{}")
    os.utime(notes, (1, 1))
    (folder.path / RUN / EXPORT / "config.json").unlink()
    said = rlbox("eval", "get", RUN, "--best", "--json")
    assert (said.code, said.data["brought"]) == (0, 2)
    assert same(disk / EXPORT, folder.path / RUN / EXPORT)


def test_a_folder_of_results_is_chosen_from_here(disk: Path, folder: Folder, rlbox: Rlbox) -> None:
    (disk / RESULTS / "best_checkpoint.json").unlink()
    said = rlbox("eval", "get", RESULTS, "--best", "--by", "adding", "--to", "got")
    assert said.code == 0, said.err
    assert same(disk / EXPORT, folder.path / "got" / EXPORT)
    refused = rlbox("eval", "get", RESULTS, "--best", "--to", "got")
    assert (refused.code, "no suite that decides was judged of all checkpoints" in refused.err) == (2, True)


def test_what_was_cut_over_ssh_goes_on(disk: Path, ssh: Path, folder: Folder, rlbox: Rlbox, tmp_path: Path) -> None:
    log = tmp_path / "log"
    cut = f'case $last in *"tail -c"*) echo "$last" >>{log}; sh -c "$last" | head -c 1000000; exit 9 ;; esac\n'
    ssh.write_text(SSH.replace("exec", f"{cut}exec"))
    said = rlbox("eval", "get", RUN, "--best")
    assert (said.code, "it goes on where it was cut" in said.err) == (5, True)
    assert same(disk / RESULTS, folder.path / RUN / RESULTS)
    ssh.write_text(SSH.replace("exec", f'case $last in *"tail -c"*) echo "$last" >>{log} ;; esac\nexec'))
    said = rlbox("eval", "get", RUN, "--best", "--json")
    assert said.code == 0, said.err
    assert [line.split()[2] for line in log.read_text().splitlines()] == ["+1", "+1000001"]
    assert same(disk / EXPORT, folder.path / RUN / EXPORT)


def test_the_disk_beside_another_engine_is_named_whole(ssh: Path, follow: Follow, disk: Path) -> None:
    step = follow("eval", "get", RUN, "--data", "data")
    follow.again(step, step.options({})[0], str(disk))


def test_from_an_instance(
    judged: Path, instance: Path, platform: Platform, folder: Folder, rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(judged, instance)
    said = rlbox("eval", "get", RUN, "--best", "--instance", f"{NUMBER}", "--json")
    assert said.code == 0, said.err
    assert same(instance / EXPORT, folder.path / RUN / EXPORT)
    assert rlbox("vast", "fetch", f"{NUMBER}", EXPORT, "--only", "--json").data["brought"] == 0


def test_nothing_changes_in_a_dry_run(disk: Path, folder: Folder, rlbox: Rlbox) -> None:
    before = tree(disk, folder.path, Path.home())
    said = rlbox("eval", "get", RUN, "--best", "--dry-run")
    assert said.code == 0, said.err
    assert f"{RESULTS}/step_200/summary.json" in said.out
    assert said.out.splitlines()[-1].startswith("# verdict: this would bring ")
    assert tree(disk, folder.path, Path.home()) == before


def test_a_link_out_of_the_disk_brings_nothing(disk: Path, folder: Folder, rlbox: Rlbox, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("secret")
    shutil.rmtree(disk / "work/outputs")
    (disk / "work/outputs").symlink_to(tmp_path / "private")
    (tmp_path / "private/phase1").mkdir()
    (tmp_path / "private/phase1/key").write_text("secret")
    said = rlbox("eval", "get", RUN)
    assert (said.code, "not brought: work/outputs/phase1: a link leads out of the folder" in said.err) == (1, True)
    assert "key" not in {path.name for path in folder.path.rglob("*")}


def test_an_export_off_the_disk_is_refused(disk: Path, rlbox: Rlbox) -> None:
    path = disk / RESULTS / "best_checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": "/etc"}))
    said = rlbox("eval", "get", RUN, "--best")
    assert (said.code, "/etc is not on the data disk" in said.err) == (2, True)


def test_an_export_that_changed_since_is_judged_again(disk: Path, sandbox_url: str, follow: Follow) -> None:
    (disk / EXPORT / "model.safetensors").write_bytes((disk / EXPORT / "model.safetensors").read_bytes()[:-1] + b"\xff")
    step = follow("eval", "get", RUN, "--best")
    assert step.said.code == 1
    for name in ("suites", "problems"):
        shutil.copytree(disk / name, Path(name))
    with playing(Player(judging.right)) as player:
        asked = ("--suite", "adding", "--problems", "problems", "--url", player.url, "--sandbox-url", sandbox_url)
        assert follow.rlbox("eval", "judge", str(disk / EXPORT), "--out", str(disk / RESULTS), *asked).code == 0
    follow.again(step)


def test_a_run_that_is_not_there_is_chosen(disk: Path, follow: Follow) -> None:
    step = follow("eval", "get", "nosuch")
    follow.instead(step, "nosuch", step.choices()[0])


def test_a_data_disk_is_named(disk: Path, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "empty"))
    step = follow("eval", "get", RUN)
    follow.again(step, *step.options({"DIR": str(disk)}))


def test_a_run_without_an_evaluation_is_a_folder_instead(disk: Path, follow: Follow) -> None:
    (disk / f"runs/{RUN}/plan.json").write_text('{"stages": []}')
    step = follow("eval", "get", RUN)
    follow.instead(step, RUN, RESULTS)
