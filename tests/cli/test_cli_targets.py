"""`rlbox targets`: what there is, though some of it is broken."""

from __future__ import annotations

from fakes import Folder, Rlbox


def test_what_is_broken_hides_nothing(rlbox: Rlbox, folder: Folder) -> None:
    """It stands in its row, and the exit code says that there is one."""
    folder.target("torn", "title = [")
    folder.job("bytes").write_bytes(b"title = '\xff'")
    (folder.path / "images/folder/target.toml").mkdir(parents=True)
    said = rlbox("targets")
    assert (said.code, said.err) == (2, "")
    lines = {line.split()[1]: line for line in said.out.splitlines()}
    assert {"local", "vast-5090", "smoke", "xdan"} < set(lines)
    assert "images/torn/target.toml: broken TOML: " in lines["torn"]
    assert "jobs/bytes.toml: not UTF-8 text: " in lines["bytes"]
    assert "images/folder/target.toml: cannot be read: Is a directory" in lines["folder"]
    said = rlbox("targets", "--json")
    assert said.code == 2
    assert {row["name"] for row in said.data["found"] if row["problem"]} == {"torn", "bytes", "folder"}
