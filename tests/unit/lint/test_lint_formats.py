"""Each format is read for what it sets, runs and names."""

from __future__ import annotations

import json

import pytest

from rlbox.lint.drift import load_drift
from rlbox.lint.formats import detect_format, read_document
from rlbox.lint.rules import lint_text


def found(name: str, text: str) -> list[tuple[int, str]]:
    """Return line and rule of what is found, without notes."""
    return [(one.line, one.rule) for one in lint_text(name, text, load_drift()) if one.severity != "note"]


DOCKERFILE = """\
FROM verl/verl:latest AS base
ENV NCCL_TIMEOUT=600 \\
    VLLM_ATTENTION_BACKEND=FLASH_ATTN
ENV VLLM_USE_TRITON_FLASH_ATTN 0
# RUN ray shutdown
RUN --mount=type=cache,target=/c apt-get update && apt-get install git \\
    # ray shutdown
    && ray shutdown
RUN <<EOF
ray shutdown
EOF
RUN ["ray", "shutdown"]
FROM base
HEALTHCHECK --interval=5s CMD curl http://localhost:8000/health || exit 1
CMD ["ray", "start", "--head"]
"""

PYTHON = '''\
"""os.environ["NCCL_TIMEOUT"] = "1"; ray shutdown"""
import os, subprocess
# os.environ["NCCL_TIMEOUT"] = "1"
os.environ["NCCL_TIMEOUT"] = "600"
os.environ.setdefault("NCCL_TIMEOUT", "600")
os.environ.update({"NCCL_TIMEOUT": "1"})
os.environ.update(NCCL_TIMEOUT="3")
os.environ |= {"NCCL_TIMEOUT": "3"}
os.putenv("NCCL_TIMEOUT", "3")
ray.init(runtime_env={"env_vars": {"NCCL_TIMEOUT": "3"}})
ray.init(storage="/x")
subprocess.run(["ray", "shutdown"], check=True)
subprocess.run("ray shutdown", shell=True, env={"NCCL_TIMEOUT": "2"})
os.system("cd x && ray shutdown")
stubs = "/usr/local/cuda/lib64/stubs"
os.environ["LD_LIBRARY_PATH"] = f"{stubs}:{os.environ.get('LD_LIBRARY_PATH', '')}"
args = AsyncEngineArgs(disable_log_requests=True)
print("NCCL_TIMEOUT=3", os.environ.get("HOME"))
'''

YAML = """\
# NCCL_TIMEOUT: 3
services:
  a:
    image: verl/verl:latest
    environment:
      - NCCL_TIMEOUT=600
      - "VLLM_ATTENTION_BACKEND=X"
    command: ["ray", "start", "--head", "--port=18000"]
  b:
    environment: { NCCL_TIMEOUT: "600", A: b }
    command: ray shutdown
env:
  - name: NCCL_TIMEOUT
    value: "600"
jobs:
  - run: |
      # ray shutdown
      ray shutdown
  - run: ray shutdown  # now
  - command:
      - ray
      - shutdown
  - command: [bash, -c, "ray shutdown"]
  - args:
      - bash
      - -c
      - |
        echo 1
        ray shutdown
text: ray shutdown, they say
"""

TOML = """\
title = "ray shutdown"   # NCCL_TIMEOUT = "3"
[env]
NCCL_TIMEOUT = "600"
[ports]
ray = 18100
[[services]]
command = [
    "ray", "start", "--head", "--block",   # a head
    "--port={port.ray}",
]
env = { VLLM_ATTENTION_BACKEND = "X" }
[stages.gate]
require = [{ pattern = '[SYNC]' }, { pattern = '\\[SYNC\\]' }]
data = "/path/to/data"
"""

JSON = """\
{"env_vars": {"NCCL_TIMEOUT": "600"},
 "command": ["ray", "shutdown"],
 "run": "ray shutdown",
 "text": "ray shutdown"}
"""

NOTES = """\
# Notes on `ray shutdown`

Do not use `ray shutdown`: it is Python. NCCL_TIMEOUT=600 does nothing.
Run `ray shutdown` at the end, with `NCCL_TIMEOUT=600`.
`disable_log_requests` was renamed.

```bash
ray shutdown
```
1. indented:
   ```sh
   export NCCL_TIMEOUT=1  # x
   ```
> ```console
> $ ray shutdown
> ray shutdown: no such command
> ```
```python
os.environ["NCCL_TIMEOUT"] = "1"
```
```powershell
$env:NCCL_TIMEOUT = "600"
Get-Process python | Stop-Process
```
```
(pid=1) ray shutdown was called
phase_1_ SFT/x
ray shutdown
```
```diff
+ ray shutdown
```

| Parameter | Default | Set to |
|---|---|---|
| `NCCL_TIMEOUT` | 30 s | 600 s |
| `NCCL_DEBUG` | off | `TRACE` |

| Variable | Meaning |
|---|---|
| `NCCL_TIMEOUT` | not read by NCCL |

    ray shutdown
    ray shutdown is what they call it.
"""

SHELL_IN_CRLF = "#!/bin/bash\r\nray shutdown\r\n"

CASES = [
    (
        "Dockerfile",
        DOCKERFILE,
        "1 moving-tag, 2 nccl-timeout, 3 vllm-attention-backend, 4 vllm-triton-flash-attn, 6 apt-asks, 8 ray-shutdown,"
        " 10 ray-shutdown, 12 ray-shutdown, 14 curl-without-fail, 15 ray-start-ends",
    ),
    (
        "x.py",
        PYTHON,
        "4 nccl-timeout, 5 nccl-timeout, 6 nccl-timeout, 7 nccl-timeout, 8 nccl-timeout, 9 nccl-timeout,"
        " 10 nccl-timeout,"
        " 11 ray-storage-python, 12 ray-shutdown, 13 ray-shutdown, 13 nccl-timeout, 14 ray-shutdown,"
        " 16 stubs-at-run-time, 16 empty-path-element, 17 vllm-disable-log-requests-python",
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
        "3 nccl-timeout, 9 ray-port-in-worker-range, 11 vllm-attention-backend, 13 bracket-pattern, 14 placeholder",
    ),
    ("x.json", JSON, "1 nccl-timeout, 2 ray-shutdown, 3 ray-shutdown"),
    (
        "notes.txt",
        NOTES,
        "4 ray-shutdown, 4 nccl-timeout, 8 ray-shutdown, 12 nccl-timeout, 15 ray-shutdown, 19 nccl-timeout,"
        " 22 nccl-timeout, 28 ray-shutdown, 36 nccl-timeout, 43 ray-shutdown",
    ),
    ("open.toml", "[env\nNCCL_TIMEOUT = '600'\n", "1 broken-toml"),
    ("twice.toml", "[env]\nA = 1\nA = 2\n", "3 broken-toml"),
    ("end.toml", "[env]\nA = 1\n\nB = [1,\n", "4 broken-toml"),
    ("x.sh", SHELL_IN_CRLF, "1 crlf, 2 ray-shutdown"),
    ("x.md", "```bash\r\nray shutdown\r\n```\r\n", "2 ray-shutdown"),
    (".env", "NCCL_TIMEOUT=600\nHF_TOKEN=abcdefgh\n", "1 nccl-timeout"),
    ("Makefile", "all:\n\tray shutdown\nray shutdown:\n", "2 ray-shutdown"),
    ("x.ps1", '$env:NCCL_TIMEOUT = "600"\nGet-Process python\n', "1 nccl-timeout"),
    ("run", "#!/usr/bin/env bash\nray shutdown\n", "2 ray-shutdown"),
    ("<stdin>", "ray shutdown\n", "1 ray-shutdown"),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES, ids=[name for name, _, _ in CASES])
def test_a_format_is_read(name: str, text: str, expected: str) -> None:
    assert sorted(f"{line} {rule}" for line, rule in found(name, text)) == sorted(expected.split(", "))


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a/Dockerfile.dev", "", "dockerfile"),
        ("x.dockerfile", "", "dockerfile"),
        (".env.local", "", "env"),
        ("GNUmakefile", "", "make"),
        ("x.bashrc", "", "shell"),
        ("run", "#!/usr/bin/python3\n", "python"),
        ("run", "import os\n", "python"),
        ("<stdin>", "FROM a:1\nRUN b\n", "dockerfile"),
        ("<stdin>", "[env]\nA = 1\n", "toml"),
        ("<stdin>", "env:\n  A: 1\n", "yaml"),
        ("<stdin>", '{"a": 1}', "yaml"),
        ("<stdin>", "text\n```\na\n```\n", "notes"),
        ("<stdin>", "echo 1\n", "shell"),
    ],
)
def test_the_format_is_known_by_the_name_or_the_first_lines(name: str, text: str, kind: str) -> None:
    assert detect_format(name, text) == kind


def test_a_byte_order_mark_does_not_matter() -> None:
    assert found("x.sh", "\ufeffray shutdown") == [(1, "ray-shutdown")]


def test_what_cannot_be_parsed_is_read_as_far_as_it_goes() -> None:
    assert found("x.py", "def (:\n") == []
    assert found("x.toml", '[env\nNCCL_TIMEOUT = "1"\n') == [(1, "broken-toml")]
    assert found("x.yaml", "a: [b\nenv: {NCCL_TIMEOUT: 1}\n") == []
    assert found("x.sh", "echo $(never closed\nray shutdown\n") == [(2, "ray-shutdown")]


def test_names_are_put_in() -> None:
    document = read_document("x.sh", "A=1\nB=${A}2\nC=${NONE:-3}\nD=$D:x\n")
    resolved = [document.resolve(text, 100) for text in ("$B", "$C", "$NONE", "${NONE:-$A}", "$D")]
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
FORMS = {
    "plain value over two lines": "env:\n  <NCCL_TIMEOUT: 600\n    seconds\n",
    "value on the next line": "env:\n  <NCCL_TIMEOUT:\n    600\n",
    "folded, stripped value": "env:\n  A: b\n  <NCCL_TIMEOUT: >-\n    600\n  C: d\n",
    "folded command": "command: >-\n  ray start --head --port=6379\n  <--storage=/s\n",
    "folded command with a number and a comment": "command: >2-  # why\n    ray start --head\n    <--storage=/s\n",
    "literal": "run: |\n  set -e\n  <ray shutdown\n",
    "literal with lines that go on": "run: |-\n  ray start --head \\\n    --port=6379 \\\n    <--storage=/s\n",
    "double-quoted over two lines": 'command: "ray start --head\n  <--storage=/s"\n',
    "double-quoted with escapes": 'command: "echo \\x41\\u4e2d\\n\\"a\\"; <ray shutdown"\n',
    "single-quoted over two lines": "command: 'ray start --head\n  <--storage=/s'\n",
    "anchor before a block": "job:\n  run: &run |\n    <ray shutdown\n",
    "anchored flow map": 'env: &env {A: "1", <NCCL_TIMEOUT: "600"}\n',
    "alias of a command": "x-run: &run <ray shutdown\njob:\n  command: *run\n",
    "alias in a list": "x: &x <NCCL_TIMEOUT=600\nenvironment:\n  - A=b\n  - *x\n",
    "merge key": "base: &base\n  <NCCL_TIMEOUT: 600\njob:\n  env:\n    <<: *base\n    A: b\n",
    "tag": "env:\n  <NCCL_TIMEOUT: !!str 600\n",
    "own tag": "command: !Sub\n  - a\n  - {run: !Ref x, command: <ray shutdown}\n",
    "unknown tag of a mapping": "env: !reference {<NCCL_TIMEOUT: 600}\n",
    "flow map over lines": "env: {A: 1,\n  <NCCL_TIMEOUT: 600,  # why\n}\n",
    "flow with a word over two lines": 'command: [bash, -c, "set -e;\n  <ray shutdown"]\n',
    "block list": "command:\n- ray\n- start\n- --head\n- <--storage=/s\n",
    "block list of lines": "before_script:\n  - make\n  - <ray shutdown\n",
    "name and value": "env:\n  - name: A\n    value: b\n  - name: NCCL_TIMEOUT\n    value: '<600'\n",
    "command and args": "containers:\n  - command: [ray, start]\n    args:\n      - --head\n      - <--storage=/s\n",
    "entry point and command": "a:\n  entrypoint: [ray]\n  command: [start, --head, <--storage=/s]\n",
    "explicit key": "env:\n  ? <NCCL_TIMEOUT\n  : 600\n",
    "second document": "a: 1\n---\nb: 2\n...\n---\nenv:\n  <NCCL_TIMEOUT: 600\n",
    "Chinese command": "command: >-\n  echo 中文 &&\n  <ray shutdown\n",
    "windows": "env:\r\n  A: 1\r\n  <NCCL_TIMEOUT: >-\r\n    600\r\n",
    "a file in Kubernetes": "kind: ConfigMap\ndata:\n  .env: |\n    A=b\n    <NCCL_TIMEOUT=600\n",
    "GitLab": "job:\n  variables: &v\n    <NCCL_TIMEOUT: '600'\n  script: !reference [.setup, script]\n",
    "template": "{% if a %}\nenv:\n  A: {{ b }}-{{ c }}\n  <NCCL_TIMEOUT: {{ t }}\n{% endif %}\n",
    "template of Helm": "{{- if .x }}\nenv:\n  {{- with y }}\n  <NCCL_TIMEOUT: {{ .z }}\n  {{- end }}\n{{- end }}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_dead_is_found_where_it_stands(form: str) -> None:
    marked = FORMS[form].replace("<<:", "\0").replace("!<", "\1")
    before = marked[: marked.index("<")].replace("\r", "").replace("\0", "<<:").replace("\1", "!<")
    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    text = marked.replace("<", "", 1).replace("\0", "<<:").replace("\1", "!<")
    found = {(one.line, one.column) for one in lint_text("x.yaml", text, load_drift()) if one.severity != "note"}
    assert found == {place}


@pytest.mark.parametrize(
    "text",
    [
        "env:\n  NCCL_TIMEOUT:\n  B: c\n",
        "text: ray shutdown\nabout: >-\n  NCCL_TIMEOUT=600\n",
        "# env: {NCCL_TIMEOUT: 600}\na: 'b # NCCL_TIMEOUT: 600'\n",
        "env:\n  NCCL_TIMEOUT: >-  # rlbox: ignore=nccl-timeout\n    600\n",
    ],
)
def test_what_is_not_set_or_is_switched_off_is_not_found(text: str) -> None:
    assert [one for one in lint_text("x.yaml", text, load_drift()) if one.severity != "note"] == []


def test_the_same_in_json_and_in_notes() -> None:
    assert found("x.md", '```json\n{"env_vars": {"NCCL_TIMEOUT": "600"}}\n```\n') == [(2, "nccl-timeout")]
    text = json.dumps({"a": {"env": {"A": "\u4e2d\n", "NCCL_TIMEOUT": "600"}}}, indent="\t")
    [hit] = lint_text("x.json", text, load_drift())
    assert (hit.line, hit.column) == (5, 5)
    [hit] = lint_text("x.md", "> ```yaml\n> env: &e\n>   NCCL_TIMEOUT: >-\n>     600\n> ```\n", load_drift())
    assert (hit.line, hit.column) == (3, 5)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [" + "[" * 60_000,
        "[" * 60_000 + "]" * 60_000,
        "a: &a\n  b: *a\n  NCCL_TIMEOUT: *a\n",
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
        "a0: &a0 {x: y}\n" + "".join(f"a{i}: &a{i} {{b: *a{i - 1}, c: *a{i - 1}}}\n" for i in range(1, 60)),
        "'\n" * 20_000,
        "a: [\n" * 5_000,
        "{% if a %}\n" * 20_000 + "a: b: c\n" * 5_000,
        "a: 1\n" * 20_000,
    ],
    ids=["open", "deep", "circle", "laughs", "laughing maps", "quotes", "brackets", "template", "long"],
)
def test_text_of_any_depth_is_read(text: str) -> None:
    lint_text("x.yaml", text, load_drift())
