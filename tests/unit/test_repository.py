"""What no file of the repository may hold."""

from __future__ import annotations

import re

import pytest
from fakes import CHECKOUT, repository_files

# Written in pieces, or this file would be a finding.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("npmjs", "org"),
        ("npmjs", "com"),
    )
]
# `/root/.cache/uv` is the cache mount of a build step, inside the image; the others are data disks of AutoDL machines.
HOME = re.compile(
    r"/home/(?=\w)|/Users/(?=\w)|/ro" + r"ot/(?!\.cache/uv\b|autodl-(?:tmp|fs)\b)|/wo" + r"rk/(?=main|shared)"
)
SECRET = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|ghp_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16})\b")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every text file of the repository, by name."""
    found = {name: data.decode("utf-8", "replace") for name, data in repository_files().items() if b"\0" not in data}
    assert "pyproject.toml" in found
    return found


@pytest.mark.allow("processes")
@pytest.mark.parametrize("needle", REGISTRIES)
def test_no_package_registry_is_named(texts: dict[str, str], needle: str) -> None:
    assert [name for name, text in texts.items() if needle in text] == []


@pytest.mark.allow("processes")
def test_no_home_folder_is_named(texts: dict[str, str]) -> None:
    found = [f"{name}: {hit.group()}" for name, text in texts.items() for hit in HOME.finditer(text)]
    assert found == []


@pytest.mark.allow("processes")
def test_no_secret_is_there(texts: dict[str, str]) -> None:
    assert [name for name, text in texts.items() if SECRET.search(text)] == []


@pytest.mark.allow("processes")
def test_no_cache_is_committed(texts: dict[str, str]) -> None:
    assert [
        name for name in texts if re.search(r"(^|/)(__pycache__|\.mypy_cache|\.ruff_cache|\.venv|node_modules)/", name)
    ] == []


def test_each_promise_of_the_security_page_names_a_test_that_there_is() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (CHECKOUT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    for path, test in named:
        assert f"def {test or 'test_'}" in (CHECKOUT / path).read_text(encoding="utf-8"), f"{path}::{test}"
