"""A cluster with engines of Debian 12's own Docker 20.10, which unpacks no zstd, and this machine's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from clusterbox import DISK, NODES, Hosts
from clusterstand import REDUCE, as_before, built, containers, healthy
from following import Follow
from projectbox import own

IMAGE = own("pair")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")]


@pytest.fixture(scope="module", params=["here 20", "20 20"], ids=["an old worker", "old ones alone"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTER_HOSTS_ENGINES", request.param)
        with built(tmp_path_factory.mktemp("project"), ("pair",)) as found:
            yield found


def test_they_get_the_very_same_image(two: Hosts, follow: Follow) -> None:
    """It is sent once; what an engine has of it is not sent again, and nothing is left but the image."""
    with as_before(two, follow, ("pair",)):
        assert "20.10" in two.on("node1", "docker version --format '{{.Server.Version}}'")
        up = two("cluster", "up", "pair", "--json")
        healthy(up)
        assert up.data["started"] == [*NODES]
        assert len({two.on(node, f"docker image inspect -f '{{{{.RootFS.Layers}}}}' {IMAGE}") for node in NODES}) == 1
        began = containers(two)
        again = two("cluster", "up", "pair", "--json")
        healthy(again)
        assert (again.data["started"], containers(two)) == ([], began)
        done = two("cluster", "submit", "pair", "--", "python", "-c", REDUCE)
        assert done.code == 0, done.err
        two.on("node1", "docker kill $(docker ps -q)")
        back = two("cluster", "up", "pair", "--json")
        healthy(back)
        assert back.data["started"] == ["node1"]
        for node in NODES:
            assert two.on(node, f"find {DISK}/clusters -name parts").strip() == ""
