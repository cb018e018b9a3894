"""Each format is read for what it sets, runs and names."""

from __future__ import annotations

import contextlib

import pytest
from fakes import load_cases

from rlbox.errors import SpecError
from rlbox.lint.drift import load_drift_rules
from rlbox.lint.formats import detect_format_or_shell, parse_document
from rlbox.lint.rules import lint_text
from rlbox.lint.shell import Position

TABLES = load_cases("lint", "test_lint_formats")
pytestmark = pytest.mark.allow("processes")  # bash -n


def found(name: str, text: str) -> list[tuple[int, str]]:
    """Return line and rule of what is found, without notes."""
    return [(one.line, one.rule) for one in lint_text(name, text, load_drift_rules()) if one.severity != "note"]


DOCKERFILE = TABLES["DOCKERFILE"]
YAML = TABLES["YAML"]
TOML = TABLES["TOML"]

JSON = """\
{"env_vars": {"NCCL_TIMEOUT": "600"},
 "command": ["ray", "shutdown"],
 "run": "ray shutdown",
 "text": "ray shutdown"}
"""

NOTES = TABLES["NOTES"]

SHELL_IN_CRLF = "#!/bin/bash\r\nray shutdown\r\n"

CASES = [
    (
        "Dockerfile",
        DOCKERFILE,
        "1 moving-tag, 2 nccl-timeout, 3 vllm-attention-backend, 4 vllm-triton-flash-attn, 6 apt-asks, 8 ray-shutdown,"
        " 10 ray-shutdown, 12 ray-shutdown, 14 curl-without-fail, 15 ray-start-ends",
    ),
    (
        "compose.yaml",
        YAML,
        "4 moving-tag, 6 nccl-timeout, 7 vllm-attention-backend, 8 ray-start-ends, 8 ray-port-in-worker-range,"
        " 10 nccl-timeout, 11 ray-shutdown, 14 nccl-timeout, 18 ray-shutdown, 19 ray-shutdown, 21 ray-shutdown,"
        " 23 ray-shutdown, 29 ray-shutdown",
    ),
    (
        "cluster.yaml",
        "head_start_ray_commands:\n  - ulimit -n 9; ray shutdown\nstartCommand: ray shutdown\nabout: ray shutdown\n",
        "2 ray-shutdown, 3 ray-shutdown",
    ),
    (
        "jobs/x.toml",
        TOML,
        "3 nccl-timeout, 9 ray-port-in-worker-range, 11 vllm-attention-backend, 13 bracket-pattern",
    ),
    ("x.json", JSON, "1 nccl-timeout, 2 ray-shutdown, 3 ray-shutdown"),
    ("notes.txt", NOTES, "6 ray-shutdown, 10 nccl-timeout, 13 ray-shutdown, 16 nccl-timeout"),
    ("x.sh", SHELL_IN_CRLF, "1 crlf, 2 ray-shutdown"),
    ("x.md", "```bash\r\nray shutdown\r\n```\r\n", "2 ray-shutdown"),
    ("run", "#!/usr/bin/env bash\nray shutdown\n", "2 ray-shutdown"),
    ("<stdin>", "ray shutdown\n", "1 ray-shutdown"),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES, ids=[name for name, _, _ in CASES])
def test_a_format_is_read(name: str, text: str, expected: str) -> None:
    assert sorted(f"{line} {rule}" for line, rule in found(name, text)) == sorted(expected.split(", "))


@pytest.mark.parametrize(("name", "text", "kind"), TABLES["the_format_is_known_by_the_name_or_the_first_lines"])
def test_the_format_is_known_by_the_name_or_the_first_lines(name: str, text: str, kind: str) -> None:
    assert detect_format_or_shell(name, text) == kind


def test_a_byte_order_mark_does_not_matter() -> None:
    assert found("x.sh", "\ufeffray shutdown") == [(1, "ray-shutdown")]


def test_what_cannot_be_parsed_is_read_as_far_as_it_goes() -> None:
    with pytest.raises(SpecError, match="broken TOML"):
        found("x.toml", '[env\nNCCL_TIMEOUT = "1"\n')
    assert found("x.md", "```toml\n[env\n```\n```sh\nray shutdown\n```\n") == [(5, "ray-shutdown")]
    with pytest.raises(SpecError, match=r"x\.yaml: not read: not valid YAML \(line 2"):
        found("x.yaml", "a: [b\nenv: {NCCL_TIMEOUT: 1}\n")
    template = "${HEAD}\na:\n  - { name: x, value: ${X:-1,2} }\nenv: {NCCL_TIMEOUT: 1}\n"
    assert found("x.yaml", template) == [(4, "nccl-timeout")]
    assert found("x.json", '{\n\t"env": {"NCCL_TIMEOUT": 1}}') == [(2, "nccl-timeout")]
    assert (2, "ray-shutdown") in found("x.sh", "echo $(never closed\nray shutdown\n")


def test_names_are_put_in() -> None:
    document = parse_document("x.sh", "A=1\nB=${A}2\nC=${NONE:-3}\nD=$D:x\n")
    end = Position(100, 1)
    resolved = [document.expand_variables(text, end) for text in ("$B", "$C", "$NONE", "${NONE:-$A}", "$D")]
    assert resolved == ["12", "3", "$NONE", "1", "$D:x"]


def test_a_dockerfile_goes_on_over_what_docker_leaves_out() -> None:
    text = "FROM a:1@sha256:0\nENV A=b \\\n\n    # why\n    \\\n  NCCL_TIMEOUT=600 \\\n\nRUN ray shutdown\n"
    assert found("Dockerfile", text) == [(6, "nccl-timeout")]
    text = "FROM a:1@sha256:0\nENV A=b \\\n\n  NCCL_TIMEOUT=600\n\nRUN ray shutdown\n"
    assert found("Dockerfile", text) == [(4, "nccl-timeout"), (6, "ray-shutdown")]


def test_what_a_dockerfile_does_in_images_built_on_it() -> None:
    text = "FROM a:1@sha256:0\nONBUILD ENV NCCL_TIMEOUT=600\nonbuild RUN true && \\\n\n  ray shutdown\n"
    text += 'ONBUILD CMD ["ray", "shutdown"]\n'
    assert found("Dockerfile", text) == [(2, "nccl-timeout"), (5, "ray-shutdown"), (6, "ray-shutdown")]


# Name to a file in which `<` stands in front of what is dead; the mark is taken out before the file is read.
FORMS = TABLES["FORMS"]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_dead_is_found_where_it_stands(form: str) -> None:
    marked = FORMS[form].replace("<<:", "\0").replace("!<", "\1")
    before = marked[: marked.index("<")].replace("\r", "").replace("\0", "<<:").replace("\1", "!<")
    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    text = marked.replace("<", "", 1).replace("\0", "<<:").replace("\1", "!<")
    found = {(one.line, one.column) for one in lint_text("x.yaml", text, load_drift_rules()) if one.severity != "note"}
    assert found == {place}


@pytest.mark.parametrize("text", TABLES["what_is_not_set_or_is_switched_off_is_not_found"])
def test_what_is_not_set_or_is_switched_off_is_not_found(text: str) -> None:
    assert [one for one in lint_text("x.yaml", text, load_drift_rules()) if one.severity != "note"] == []


def test_json_and_yaml_in_notes_are_read_at_their_place() -> None:
    assert found("x.md", '```json\n{"env_vars": {"NCCL_TIMEOUT": "600"}}\n```\n') == [(2, "nccl-timeout")]
    [hit] = lint_text("x.md", "> ```yaml\n> env: &e\n>   NCCL_TIMEOUT: >-\n>     600\n> ```\n", load_drift_rules())
    assert (hit.line, hit.column) == (3, 5)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [" + "[" * 60_000,
        "a: &a\n  b: *a\n  NCCL_TIMEOUT: *a\n",
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
    ],
    ids=["deep", "circle", "laughs"],
)
def test_yaml_of_any_depth_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(SpecError):
        lint_text("x.yaml", text, load_drift_rules())
