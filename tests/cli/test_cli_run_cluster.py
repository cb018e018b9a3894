"""`rlbox run --place cluster --dry-run`: a job as it would be on a cluster, which stands as the nodes have told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusterfacts import plan
from fakes import Folder, Rlbox

from rlbox.app import App
from rlbox.cluster.plan import ClusterOptions, ClusterPlan
from rlbox.errors import MachineError

TARGET = "cluster-2node"
LINE = ("run", "xdan", "--place", "cluster", "--nodes", "a,b", "--dry-run")


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> list[ClusterOptions]:
    """A cluster of two nodes of eight GPUs; the list gets what was asked for."""
    asked: list[ClusterOptions] = []
    members = tuple(replace(one, gpus=8) for one in plan().members)

    def look(app: App, wish: ClusterOptions) -> ClusterPlan:
        asked.append(wish)
        return plan(name=TARGET, target=TARGET, ray="2.43.0", members=members)

    monkeypatch.setattr("rlbox.run.cluster.require_usable_cluster", look)
    return asked


def test_the_cluster_says_what_it_is(rlbox: Rlbox, folder: Folder, stands: list[ClusterOptions]) -> None:
    said = rlbox(*LINE, "--json")
    assert said.code == 0, said.out
    assert stands == [ClusterOptions(target=TARGET, nodes="a,b")]
    found = said.data["plan"]
    assert (found["place"], found["params"]["head"], found["params"]["node_gpus"]) == ("cluster", "10.0.0.1", 8)
    assert [node["name"] for node in found["cluster"]["nodes"]] == ["a", "b"]
    assert found["cluster"]["options"] == f"--place cluster --target {TARGET} --nodes a,b --data /data"
    (train,) = (stage for stage in found["stages"] if stage["name"] == "train")
    assert train["ray"]["dashboard"] == "http://127.0.0.1:8101"
    assert train["ray"]["temp_dir"].endswith(f"/clusters/1000/{TARGET}/a/ray")
    assert [one["name"] for one in train["services"]] == ["reward"]
    assert "open: " not in said.err  # what keeps strangers out of it is the cluster's own


def test_without_a_cluster_that_alone_is_refused(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(app: App, wish: ClusterOptions) -> None:
        raise MachineError(
            f"there is no cluster {wish.target} on a, b", next_step=f"rlbox cluster up {wish.target_and_options_text}"
        )

    monkeypatch.setattr("rlbox.run.cluster.require_usable_cluster", none)
    said = rlbox(*LINE)
    assert said.code == 5
    assert said.out.count("# refused: ") == 1
    assert "would be open" not in said.out
