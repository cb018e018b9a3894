"""Which files of a package `make relock` writes into requirements.lock."""

from __future__ import annotations

import pytest

from scripts import linux_lock


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("py3-none-any", True),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp39-abi3-manylinux_2_28_x86_64", True),
        ("cp39-cp39-manylinux_2_28_x86_64", True),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-win_amd64", False),
    ],
)
def test_wheels_for_linux_on_x86_64_are_kept(tags: str, fits: bool) -> None:
    assert linux_lock.fits(f"a-1-{tags}.whl") is fits


def test_a_requirement_has_its_marker_and_the_hashes_of_wheels_and_source() -> None:
    names = {"b": "p-1-py3-none-any.whl", "c": "p-1-cp311-cp311-win32.whl", "a": "p-1.tar.gz"}
    files = [{"url": f"https://example.com/{name}", "hashes": {"sha256": one}} for one, name in names.items()]
    package = {"name": "p", "version": "1", "marker": "python_version < '3.11'", "wheels": files[:2], "sdist": files[2]}
    assert linux_lock.format_requirement(package) == (
        "p==1 ; python_version < '3.11' \\\n    --hash=sha256:a \\\n    --hash=sha256:b"
    )
