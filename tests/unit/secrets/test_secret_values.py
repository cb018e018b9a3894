"""How secrets are found, sent to a supervisor, and received by it; no message ever holds a value."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.errors import Interrupted, SpecError, TimedOut
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import list_secret_alias_groups
from rlbox.secrets.handover import (
    SecretGrants,
    encode_secrets_as_json_line,
    receive_secrets,
    try_send_secrets,
    unset_and_declare_secrets,
)
from rlbox.secrets.lookup import find_secrets_rejecting_weak
from rlbox.values import Secret

ALIASES = list_secret_alias_groups(load_fix_catalogue(Project(folder=CHECKOUT)))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    readable, writable = os.pipe()
    yield readable, writable
    for handle in (readable, writable):
        try:
            os.close(handle)
        except OSError:
            continue


def find(tmp_path: Path, *names: str, environ: dict[str, str] | None = None, optional: tuple[str, ...] = (),
         env_file: Path | None = None) -> dict[str, str]:  # fmt: skip
    found = find_secrets_rejecting_weak(
        names,
        optional,
        overriding_env_file=env_file,
        fallback_env_file_dirs=(tmp_path, tmp_path / "disk"),
        environ=environ or {},
        aliases=ALIASES,
    )
    return {name: secret.reveal() for name, secret in found.items()}


def test_one_secret_under_every_name(tmp_path: Path) -> None:
    both = {"WANDB_API_KEY": "planted-7Qx1-9zK", "WANDB_KEY": "planted-7Qx1-9zK"}
    assert find(tmp_path, "WANDB_API_KEY", environ={"WANDB_KEY": "planted-7Qx1-9zK"}) == both
    assert find(tmp_path, "WANDB_KEY", environ={"WANDB_API_KEY": "planted-7Qx1-9zK"}) == both
    assert find(tmp_path, "HF_TOKEN", environ={"HUGGING_FACE_HUB_TOKEN": "planted-7Qx2-9zK"}) == {
        "HF_TOKEN": "planted-7Qx2-9zK",
        "HUGGING_FACE_HUB_TOKEN": "planted-7Qx2-9zK",
    }
    assert find(tmp_path, "MINE", environ={"MINE": "planted-7Qx3-9zK", "OTHER": "x"}) == {"MINE": "planted-7Qx3-9zK"}


def test_which_place_goes_before_which(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / ".env").write_text("A=disk-7Qx1-9zK\nB=disk-7Qx1-9zK\nC=disk-7Qx1-9zK\nD=disk-7Qx1-9zK")
    (tmp_path / ".env").write_text("A=project-7Qx1-9zK\nB=project-7Qx1-9zK\nC=project-7Qx1-9zK\n")
    (tmp_path / "named").write_text("A=file-7Qx1-9zK\n")
    environ = {"A": "environment-7Qx1-9zK", "B": "environment-7Qx1-9zK"}
    assert find(tmp_path, "A", "B", "C", "D", environ=environ, env_file=tmp_path / "named") == {
        "A": "file-7Qx1-9zK",
        "B": "environment-7Qx1-9zK",
        "C": "project-7Qx1-9zK",
        "D": "disk-7Qx1-9zK",
    }


def test_an_optional_secret_may_be_missing(tmp_path: Path) -> None:
    assert find(tmp_path, optional=("A", "B"), environ={"B": "planted-7Qx-9zK"}) == {"B": "planted-7Qx-9zK"}


def test_no_secrets_no_file_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("nonsense")
    assert find(tmp_path) == {}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            None,
            "secret WANDB_API_KEY (or WANDB_KEY) is missing; looked in the environment, {0}/.env (not there), "
            "{0}/disk/.env (not there)\n  secret MINE is missing; looked in the environment, {0}/.env (not there), "
            "{0}/disk/.env (not there)\n  next:  write NAME=value into {0}/.env, or export it",
        ),
        (
            "WANDB_API_KYE=planted\nMINE=\n",
            "secret WANDB_API_KEY (or WANDB_KEY) is missing; looked in the environment, {0}/.env (did you mean "
            "'WANDB_API_KYE'?), {0}/disk/.env (not there)\n  secret MINE is missing; looked in the environment, "
            "{0}/.env (empty there), {0}/disk/.env (not there)\n  next:  write NAME=value into {0}/.env, or "
            "export it",
        ),
        (
            "WANDB_API_KEY=planted\nMINE=abcd-Qxyz",
            "secret WANDB_API_KEY of {0}/.env is too weak to be kept out of logs: it is shorter than 8 characters\n"
            "  secret MINE of {0}/.env is too weak to be kept out of logs: it is a word or a name without a digit\n"
            "  next:  take one as services make them, with letters and digits in disorder; what everybody may read "
            "belongs into `env` of the job",
        ),
        (
            "WANDB_API_KEY='planted\nplanted too\n",
            "{0}/.env: 2 problems\n  {0}/.env: line 1: the quote that begins the value of WANDB_API_KEY is never closed"
            "\n  {0}/.env: line 2: no '=' in it: write NAME=value\n  next:  correct the lines named above",
        ),
    ],
)
def test_what_is_missing_or_wrong(tmp_path: Path, env: str | None, message: str) -> None:
    if env is not None:
        (tmp_path / ".env").write_text(env)
    with pytest.raises(SpecError) as caught:
        find(tmp_path, "WANDB_API_KEY", "MINE")
    assert str(caught.value) == message.format(tmp_path)
    assert caught.value.exit_code == 2


def test_a_word_of_the_run_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"MINE of the environment is too weak .*: it is a word of the run's own names"):
        find_secrets_rejecting_weak(
            ["MINE"], [], overriding_env_file=None, fallback_env_file_dirs=[],
            environ={"MINE": "Qwen9-7Qx2-9zK"}, aliases=[], logged_texts=["/data/models/qwen9-7qx2-9zk/config.json"],
        )  # fmt: skip


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the file of --env-file is missing"):
        find(tmp_path, "A", env_file=tmp_path / "none")
    with pytest.raises(SpecError, match="the file cannot be read: Is a directory"):
        find(tmp_path, "A", env_file=tmp_path)
    (tmp_path / "big").write_bytes(b"A=1\n" * 300_000)
    with pytest.raises(SpecError, match="it has more than 1 MiB"):
        find(tmp_path, "A", env_file=tmp_path / "big")


def test_sent_and_received(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    secrets = {"A": Secret("planted\n\u00fc\"'"), "B": Secret("x" * 100_000)}
    sender = threading.Thread(target=try_send_secrets, args=(lambda data: os.write(writable, data), secrets))
    sender.start()
    assert receive_secrets(("A", "B"), readable) == {"A": "planted\n\u00fc\"'", "B": "x" * 100_000}
    sender.join()
    assert "planted" not in repr(secrets)


def test_nothing_is_sent_or_awaited_without_secrets(pipe: tuple[int, int]) -> None:
    try_send_secrets(lambda data: pytest.fail("sent"), {})
    assert receive_secrets((), pipe[0]) == {}


def test_a_supervisor_that_died_takes_nothing(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    try_send_secrets(lambda data: os.write(pipe[1], data), {"A": Secret("planted")})


@pytest.mark.parametrize("sent", [b"", b'{"A": "pla'])
@pytest.mark.parametrize("closed", [True, False])
def test_secrets_that_do_not_come_in_time(pipe: tuple[int, int], sent: bytes, closed: bool) -> None:
    os.write(pipe[1], sent)
    if closed:
        os.close(pipe[1])
    with pytest.raises(TimedOut, match=r"the run's secrets \(A\) did not come over standard input"):
        receive_secrets(("A",), pipe[0], timeout_s=0.05)


def test_a_stop_ends_the_wait(pipe: tuple[int, int]) -> None:
    until = time.monotonic() + 0.1
    with pytest.raises(Interrupted):
        receive_secrets(("A",), pipe[0], is_stopped=lambda: time.monotonic() > until)


@pytest.mark.parametrize("line", [b'["planted"]\n', b'{"A": 1}\n', b'{"A": "planted\n', b"planted\n", b"\xff\n", b"\n"])
def test_a_line_that_is_none(pipe: tuple[int, int], line: bytes) -> None:
    os.write(pipe[1], line)
    with pytest.raises(SpecError, match="the standard input does not hold secrets") as caught:
        receive_secrets(("A",), pipe[0])
    assert "planted" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_name_that_did_not_come(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], encode_secrets_as_json_line({"A": Secret("planted")}))
    with pytest.raises(SpecError, match="secrets that did not come over standard input: B"):
        receive_secrets(("A", "B"), pipe[0])


def test_they_are_named_where_programs_start_and_are_not_there() -> None:
    environment = {"PATH": "/bin", "RLBOX_SECRETS": "OLD,A", "A": "of the user's own shell"}
    unset_and_declare_secrets(environment, {"A": "planted", "B": "x"})
    assert environment == {"PATH": "/bin", "RLBOX_SECRETS": "OLD,A,B"}
    untouched: dict[str, str] = {}
    unset_and_declare_secrets(untouched, {})
    assert untouched == {}


def test_who_names_a_secret_gets_it_under_all_its_names_and_nobody_else() -> None:
    secrets = {"WANDB_API_KEY": "planted1", "WANDB_KEY": "planted1", "HF_TOKEN": "planted2"}
    grants = SecretGrants(secrets, ALIASES)
    assert grants.make_environment(["WANDB_KEY", "ABSENT"]) == {
        "WANDB_API_KEY": "planted1",
        "WANDB_KEY": "planted1",
        "RLBOX_SECRETS": "WANDB_API_KEY,WANDB_KEY",
    }
    assert grants.make_environment([]) == {"RLBOX_SECRETS": ""}
    assert grants.make_masked_environment(["HF_TOKEN"]) == {"HF_TOKEN": "***", "RLBOX_SECRETS": "HF_TOKEN"}
    assert SecretGrants({}).make_environment(["HF_TOKEN"]) == {}
