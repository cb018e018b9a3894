"""The header that a Ray cluster with token authentication asks for."""

from __future__ import annotations

from pathlib import Path

from rlbox.act.ray_jobs import auth_headers


def test_the_token_of_the_environment_comes_first(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    assert auth_headers(env) == {"Authorization": "Bearer from-file"}
    assert auth_headers({**env, "RAY_AUTH_TOKEN": "mine"}) == {"Authorization": "Bearer mine"}


def test_without_a_token_there_is_no_header(tmp_path: Path) -> None:
    assert auth_headers({"RAY_AUTH_TOKEN": "mine"}) == {}
    assert auth_headers({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}) == {}
