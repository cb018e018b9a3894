"""The header that a Ray cluster with token authentication asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.doctor.ray_state import read_ray_auth_headers_or_empty


def test_the_token_of_the_environment_comes_first(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    assert read_ray_auth_headers_or_empty(env) == {"Authorization": "Bearer from-file"}
    assert read_ray_auth_headers_or_empty({**env, "RAY_AUTH_TOKEN": "mine"}) == {"Authorization": "Bearer mine"}


def test_a_token_that_is_there_counts_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_ray_auth_headers_or_empty({"RAY_AUTH_TOKEN": "mine"}) == {"Authorization": "Bearer mine"}
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("left")  # as any ray.init() of 2.60 does
    assert read_ray_auth_headers_or_empty({}) == {"Authorization": "Bearer left"}
    assert read_ray_auth_headers_or_empty({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "mine"}) == {}


def test_without_a_token_there_is_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_ray_auth_headers_or_empty({}) == {}
    assert (
        read_ray_auth_headers_or_empty({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}) == {}
    )
