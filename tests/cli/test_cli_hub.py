"""`[[hub]]`: models and data sets are locked, fetched from the mirror that has the right bytes, and read by runs.

The library is the real huggingface_hub, the hub a server on loopback; the real hubs are not asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder, Rlbox
from hubserver import Hub, Repo, make_files, serving_hub

from rlbox.artifacts.hub_files import link_and_touch_hub_snapshot, load_hub_owner
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.store_upkeep import find_unused_objects_and_partials

huggingface_hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
pytestmark = pytest.mark.allow("sockets", "processes")

JOB = """
title = "reads a model"
target = "local"
[[hub]]
name = "model"
repo = "acme/tiny"
{more}
[params]
model = {{ default = "{{hub.model}}", help = "model to read" }}
[[stages]]
name = "read"
title = "reads it"
command = ["cat", "{{param.model}}/config.json"]
[stages.gate]
files = [{{ path = "{{hub.model}}/config.json", format = "json", why = "the model" }}]
"""
MIRROR = """
title = "a mirror"
[[rule]]
kind = "huggingface"
protocol = "host"
name = "second"
url = "{url}"
match = "https://huggingface.co"
"""
TOKEN = "hf_Zk31mQ9vT7xB2nL5"


@pytest.fixture
def repo() -> Repo:
    made = Repo()
    made.push(make_files(20_000, 2_000))
    return made


@pytest.fixture
def hub(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub behind HF_ENDPOINT; it is the proxy to the real ones, and refuses that."""
    huggingface_hub.close_session()  # it keeps the proxies of an earlier test
    with serving_hub({"models/acme/tiny": repo, "datasets/acme/rows": repo}, TOKEN) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HTTPS_PROXY", made.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield made


@pytest.fixture
def job(folder: Folder) -> Path:
    return folder.job("tiny", JOB.format(more=""))


def read_lock(folder: Folder) -> dict[str, object]:
    (row,) = json.loads((folder.path / "jobs/tiny.lock.json").read_text())["hub"]
    return dict(row)


def test_lock_then_fetch_gives_run_a_folder(rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo, job: Path) -> None:
    hub.busy = 2
    said = rlbox("lock", "tiny")
    assert (said.code, "next: rlbox fetch tiny" in said.err) == (0, True), said
    assert read_lock(folder)["commit"] == repo.main
    assert "model model: the store lacks 13 of 13 files" in rlbox("run", "tiny", "--dry-run").out
    hub.busy = 2
    fetched = json.loads(rlbox("fetch", "tiny", "--json").out)
    files = repo.commits[repo.main]
    snapshot = Path(fetched["hub"]["model"])
    assert {path: (snapshot / path).read_bytes() for path in files} == files
    assert (fetched["fetched"], fetched["present"]) == (len(files), 0)
    assert rlbox("warm", str(snapshot)).code == 0

    plan = json.loads(rlbox("run", "tiny", "--dry-run", "--json").out)["plan"]
    inside = f"/opt/hub/{snapshot.name}"
    assert plan["stages"][0]["argv"] == ["cat", f"{inside}/config.json"]
    assert plan["stages"][0]["files"][0]["path"] == f"{inside}/config.json"
    assert plan["hub"] == {"model": inside}

    before = len(hub.asked)
    again = json.loads(rlbox("fetch", "tiny", "--json").out)
    assert (again["fetched"], len(hub.asked)) == (0, before)


def test_job_that_is_not_locked_uses_the_repository(rlbox: Rlbox, hub: Hub, job: Path) -> None:
    plan = json.loads(rlbox("run", "tiny", "--dry-run", "--json").out)["plan"]
    assert plan["stages"][0]["argv"] == ["cat", "acme/tiny/config.json"]
    assert plan["notes"] == ["model model: not locked; rlbox lock tiny"]
    assert "# model model: not locked; rlbox lock tiny" in rlbox("run", "tiny", "--dry-run").out
    assert rlbox("run", "tiny", "--dry-run", "--set", "model=/data/mine").out.count("/data/mine/config.json") == 1
    assert rlbox("fetch", "tiny").code == 2
    assert hub.asked == []


def test_patterns_datasets_and_targets(rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo) -> None:
    more = 'patterns = ["*.json"]\n[[hub]]\nname = "rows"\nrepo = "acme/rows"\nkind = "dataset"'
    folder.job("tiny", JOB.format(more=more))
    rlbox("lock", "tiny")
    model, rows = json.loads((folder.path / "jobs/tiny.lock.json").read_text())["hub"]
    assert [file["path"] for file in model["files"]] == ["config.json"]
    assert (rows["kind"], len(rows["files"])) == ("dataset", len(repo.commits[repo.main]))
    assert rlbox("fetch", "tiny").code == 0
    assert any(path.startswith("/datasets/acme/rows/resolve/") for path in hub.asked)
    folder.job("tiny", JOB.format(more='patterns = ["*.gguf"]'))
    assert rlbox("lock", "tiny").code == 2


def test_moved_revision_is_found_and_not_taken(rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo, job: Path) -> None:
    rlbox("lock", "tiny")
    locked = repo.main
    moved = repo.push({**repo.commits[locked], "config.json": b"{}"})
    said = rlbox("lock", "tiny", "--check")
    assert said.code == 1
    assert f"revision main of acme/tiny has moved from {locked[:12]} to {moved[:12]}" in said.err
    assert "rlbox lock tiny --upgrade model" in said.err
    assert rlbox("lock", "tiny", "--check", "--offline").code == 0
    assert rlbox("fetch", "tiny").code == 0
    assert not any(f"resolve/{moved}" in path or "resolve/main" in path for path in hub.asked)
    rlbox("lock", "tiny")
    assert read_lock(folder)["commit"] == locked
    assert rlbox("lock", "tiny", "--upgrade", "modell").code == 2
    rlbox("lock", "tiny", "--upgrade", "model")
    assert read_lock(folder)["commit"] == moved


def test_commit_that_is_gone_is_one_error(rlbox: Rlbox, hub: Hub, repo: Repo, job: Path) -> None:
    rlbox("lock", "tiny")
    gone = repo.main
    repo.push({"config.json": b"{}"})
    del repo.commits[gone]
    said = rlbox("fetch", "tiny")
    assert said.code == 1
    assert f"{hub.url.removeprefix('http://')}: answered 404" in said.err
    assert f"commit {gone[:12]} of acme/tiny is gone, or has lost README.md" in said.err
    assert said.err.count("rlbox lock tiny --upgrade model") == 1


def test_changed_file_is_refused(rlbox: Rlbox, hub: Hub, repo: Repo, job: Path) -> None:
    rlbox("lock", "tiny")
    files, shard = repo.commits[repo.main], "model-00001-of-00010.safetensors"
    files[shard] = files[shard][::-1]  # the commit stays
    said = rlbox("lock", "tiny", "--check")
    assert (said.code, f"has other files at commit {repo.main[:12]} than the lock: {shard}" in said.err) == (1, True)
    said = rlbox("fetch", "tiny")
    assert said.code == 1
    assert f"{shard}: wrong bytes: sha256" in said.err


@pytest.mark.parametrize("verb", ["lock", "fetch"])
def test_gated_repository_asks_for_the_token(
    verb: str, rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo, job: Path
) -> None:
    if verb == "fetch":
        rlbox("lock", "tiny")
    repo.gated = True
    said = rlbox(verb, "tiny")
    assert said.code == 1
    assert "gated" in said.err
    assert "https://huggingface.co/acme/tiny" in said.err
    assert "HF_TOKEN" in said.err
    folder.write(".env", f"HF_TOKEN={TOKEN}\n")
    said = rlbox(verb, "tiny", "-v")
    assert said.code == 0, said
    lock = (folder.path / "jobs/tiny.lock.json").read_text()
    assert TOKEN not in said.out + said.err + lock
    assert f"Bearer {TOKEN}" in hub.tokens


def test_mirror_that_lies_costs_one_file_and_one_line(
    rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo, job: Path
) -> None:
    folder.write(".env", f"HF_TOKEN={TOKEN}\n")
    rlbox("lock", "tiny")
    with serving_hub(hub.repos) as second:
        folder.write("sources/site.toml", MIRROR.format(url=second.url))
        hub.lies, hub.sent = True, 0
        said = rlbox("fetch", "tiny", "--sources", "site")
        assert said.code == 0
        assert said.err.count("is passed over") - said.err.count("huggingface.co is passed over") == 1
        assert "README.md: wrong bytes: sha256" in said.err
        assert hub.sent == len(repo.commits[repo.main]["README.md"])
        assert (f"Bearer {TOKEN}" in hub.tokens, set(second.tokens)) == (True, {""})


def test_mirror_of_the_profile_is_asked_before_the_hub(
    rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_ENDPOINT")
    with serving_hub({"models/acme/tiny": repo}, TOKEN) as second:
        folder.write("sources/site.toml", MIRROR.format(url=second.url))
        for verb in ("lock", "fetch"):
            assert (rlbox(verb, "tiny", "--sources", "site").code, hub.asked) == (0, [])
        repo.gated = True  # the mirror has no token
        said = rlbox("lock", "tiny", "--upgrade", "--sources", "site")
        assert (said.code, "second: Access to models/acme/tiny is restricted." in said.err) == (1, True)
        assert "CONNECT huggingface.co:443" in hub.asked
        monkeypatch.setenv("HF_ENDPOINT", f"{second.url}/")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert rlbox("lock", "tiny", "--upgrade", "--sources", "site").code == 0


@pytest.mark.parametrize("is_locked", [False, True])
def test_egress_lists_the_hosts_of_entries(is_locked: bool, rlbox: Rlbox, hub: Hub, job: Path) -> None:
    assert not is_locked or rlbox("lock", "tiny").code == 0
    rows = json.loads(rlbox("egress", "tiny", "--json").out)["contacts"]
    found = {(row["host"], row["declared"]) for row in rows if row["why"].startswith("[[hub]] model")}
    assert found == {("127.0.0.1", "machine"), ("huggingface.co", "target"), ("modelscope.cn", "default")}


def test_code_of_a_repository_needs_a_commit(rlbox: Rlbox, folder: Folder, hub: Hub) -> None:
    folder.job("tiny", JOB.format(more="trust_remote_code = true"))
    said = rlbox("lock", "tiny")
    assert (said.code, "trust_remote_code needs a revision of 40 hexadecimal digits" in said.err) == (2, True)
    folder.job("tiny", JOB.format(more=f'trust_remote_code = true\nrevision = "{hub.repos["models/acme/tiny"].main}"'))
    assert rlbox("lock", "tiny").code == 0


def test_export_is_enough_without_network(
    rlbox: Rlbox, folder: Folder, hub: Hub, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rlbox("lock", "tiny")
    assert rlbox("fetch", "tiny", "--export", str(tmp_path / "usb")).code == 0
    asked = len(hub.asked)
    monkeypatch.setenv("RLBOX_STORE", str(tmp_path / "other"))
    said = rlbox("fetch", "tiny", "--import", str(tmp_path / "usb"))
    assert (said.code, "13 imported" in said.out, len(hub.asked)) == (0, True, asked), said
    assert "tiny" in rlbox("store", "ls").out
    assert find_unused_objects_and_partials(ObjectStore(resolve_store_dir(None)), folder.project) == {}


def test_damaged_file_of_a_snapshot_is_linked_again(rlbox: Rlbox, folder: Folder, hub: Hub, job: Path) -> None:
    rlbox("lock", "tiny")
    rlbox("fetch", "tiny")
    store = ObjectStore(resolve_store_dir(None))
    (repo,) = load_hub_owner(folder.project, "job", "tiny").require_locked_repos()
    path = link_and_touch_hub_snapshot(store, repo) / "config.json"
    path.chmod(0o644)
    path.write_bytes(b'{"model_type": "other"}')
    assert rlbox("store", "verify", "--fix").code == 0
    rlbox("fetch", "tiny")
    assert path.read_bytes() == b'{"model_type": "qwen2"}'


def test_modelscope_is_locked_by_its_own_api(
    rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.job("tiny", JOB.format(more='source = "modelscope"'))
    for module in ("mirrors", "hub_lock"):
        monkeypatch.setattr(f"rlbox.artifacts.{module}.MODELSCOPE_URL", hub.url)
    assert rlbox("lock", "tiny").code == 0
    assert (read_lock(folder)["revision"], read_lock(folder)["commit"]) == ("master", repo.main)
    assert rlbox("lock", "tiny", "--check").code == 0
    assert rlbox("fetch", "tiny").code == 0


def kill_while_it_fetches(folder: Folder, hubs: list[Hub], total: int, kills: int) -> None:
    """Fetch in processes of which `kills` are killed, each after its share of the bytes."""
    argv = [sys.executable, "-m", "rlbox", "fetch", "tiny", "--sources", "site"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    for number in range(1, kills + 1):
        process = subprocess.Popen(argv, cwd=folder.path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while sum(hub.sent for hub in hubs) < total * number / (kills + 1):
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.kill()
        process.communicate()
    subprocess.run(argv, cwd=folder.path, env=env, check=True, capture_output=True)


@pytest.mark.parametrize(("megabytes", "shard"), [(5, 100_000), pytest.param(200, 4_000_000, marks=pytest.mark.slow)])
def test_killed_fetches_and_a_lying_mirror_cost_a_twentieth(
    megabytes: int, shard: int, rlbox: Rlbox, folder: Folder, hub: Hub, repo: Repo, job: Path
) -> None:
    files = make_files(megabytes * 1_000_000, shard)
    repo.push(files)
    rlbox("lock", "tiny")
    with serving_hub(hub.repos) as second:
        folder.write("sources/site.toml", MIRROR.format(url=second.url))
        hub.lies, hub.sent = True, 0
        second.block, second.pause_s = (2048, 0.005) if megabytes == 5 else (1 << 16, 0.01)
        total = sum(map(len, files.values()))
        kill_while_it_fetches(folder, [hub, second], total, kills=5)
        sent = hub.sent + second.sent
    print(f"{megabytes} MB: {sent / total:.4f} of the bytes, {hub.sent} of them wrong")
    assert sent <= 1.05 * total

    project = folder.project
    (locked,) = load_hub_owner(project, "job", "tiny").require_locked_repos()
    snapshot = link_and_touch_hub_snapshot(ObjectStore(resolve_store_dir(None)), locked)
    assert {path: (snapshot / path).read_bytes() for path in files} == files
