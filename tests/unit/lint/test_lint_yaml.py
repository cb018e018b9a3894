"""YAML in the forms that people write it: each file holds one dead variable or flag, found at its line and column."""

from __future__ import annotations

import json
import time

import pytest

from rlbox.lint.drift import load_drift
from rlbox.lint.rules import lint_text

# Name to a file in which `<` stands in front of what is dead; the mark is taken out before the file is read.
FORMS = {
    "plain": "env:\n  <NCCL_TIMEOUT: 600\n",
    "quoted key and value": "env:\n  \"<NCCL_TIMEOUT\": '600'\n",
    "plain value over two lines": "env:\n  <NCCL_TIMEOUT: 600\n    seconds\n",
    "value on the next line": "env:\n  <NCCL_TIMEOUT:\n    600\n",
    "folded, stripped value": "env:\n  A: b\n  <NCCL_TIMEOUT: >-\n    600\n  C: d\n",
    "folded command": "command: >-\n  ray start --head --port=6379\n  <--storage=/s\n",
    "folded command, deeper lines": "command: >\n  ray start --head\n    --port=6379\n    <--storage=/s\n",
    "folded command with a number and a comment": "command: >2-  # why\n    ray start --head\n    <--storage=/s\n",
    "literal": "run: |\n  set -e\n  <ray shutdown\n",
    "literal, kept": "steps:\n  - run: |+\n\n      set -e\n      <ray shutdown\n\n\nnext: 1\n",
    "literal with lines that go on": "run: |-\n  ray start --head \\\n    --port=6379 \\\n    <--storage=/s\n",
    "plain command over two lines": "command: ray start --head\n  <--storage=/s\nafter: 1\n",
    "double-quoted over two lines": 'command: "ray start --head\n  <--storage=/s"\n',
    "double-quoted with escaped ends": 'command: "ray start \\\n  --head \\\n  \\ <--storage=/s"\n',
    "double-quoted with escapes": 'command: "echo \\x41\\u4e2d\\n\\"a\\"; <ray shutdown"\n',
    "single-quoted over two lines": "command: 'ray start --head\n  <--storage=/s'\n",
    "single-quoted with quotes": "command: 'echo ''a'' ''b''; <ray shutdown'\n",
    "anchor before a value": "env:\n  <NCCL_TIMEOUT: &t 600\n  B: *t\n",
    "anchor before a block": "job:\n  run: &run |\n    <ray shutdown\n",
    "anchor on a line of its own": "a: &env\n  # why\n  <NCCL_TIMEOUT: 600\n",
    "anchored flow map": 'env: &env {A: "1", <NCCL_TIMEOUT: "600"}\n',
    "anchored flow list": "command: &c [ray, start, --head, <--storage=/s]\n",
    "anchor given again": "a: &x\n  A_B: 1\nb: &x\n  <NCCL_TIMEOUT: 1\nc: *x\n",
    "alias of a value": "t: &t 600\nenv:\n  <NCCL_TIMEOUT: *t\n",
    "alias of a command": "x-run: &run <ray shutdown\njob:\n  command: *run\n",
    "alias of a list": "x-env: &e\n  - A=b\n  - <NCCL_TIMEOUT=600\nservices:\n  a:\n    environment: *e\n",
    "alias in a list": "x: &x <NCCL_TIMEOUT=600\nenvironment:\n  - A=b\n  - *x\n",
    "alias of nothing": "a:\n  <<: *base\n  env: {<NCCL_TIMEOUT: 1}\n",
    "merge key": "base: &base\n  <NCCL_TIMEOUT: 600\njob:\n  env:\n    <<: *base\n    A: b\n",
    "merge of several": "env:\n  <<: [&a {A: b}, &b {<NCCL_TIMEOUT: 600}]\n",
    "merge beside": "x: &x {A: b}\nenv:\n  <<: *x\n  <NCCL_TIMEOUT: 600\n",
    "tag": "env:\n  <NCCL_TIMEOUT: !!str 600\n",
    "own tag": "command: !Sub\n  - a\n  - {run: !Ref x, command: <ray shutdown}\n",
    "verbatim tag and anchor": "command: !<tag:yaml.org,2002:str> &c >-\n  echo 1;\n  <ray shutdown\n",
    "unknown tag of a mapping": "env: !reference {<NCCL_TIMEOUT: 600}\n",
    "flow map over lines": "env: {A: 1,\n  <NCCL_TIMEOUT: 600,  # why\n}\n",
    "flow list of pairs": 'environment: ["A=b", "<NCCL_TIMEOUT=600"]\n',
    "flow of JSON": '{"env": {"A": [1, 2], "<NCCL_TIMEOUT": "600"}}\n',
    "flow with a word over two lines": 'command: [bash, -c, "set -e;\n  <ray shutdown"]\n',
    "block list": "command:\n- ray\n- start\n- --head\n- <--storage=/s\n",
    "block list of blocks": "script:\n  - |\n    set -e\n  - >-\n    <ray shutdown\n",
    "block list of lines": "before_script:\n  - make\n  - <ray shutdown\n",
    "list in a list": "command:\n  - - ray\n    - start\n    - <--storage=/s\n",
    "name and value": "env:\n  - name: A\n    value: b\n  - name: NCCL_TIMEOUT\n    value: '<600'\n",
    "value and name": "env:\n  - {value: '<600', name: NCCL_TIMEOUT}\n",
    "command and args": "containers:\n  - command: [ray, start]\n    args:\n      - --head\n      - <--storage=/s\n",
    "entry point and command": "a:\n  entrypoint: [ray]\n  command: [start, --head, <--storage=/s]\n",
    "explicit key": "env:\n  ? <NCCL_TIMEOUT\n  : 600\n",
    "second document": "a: 1\n---\nb: 2\n...\n---\nenv:\n  <NCCL_TIMEOUT: 600\n",
    "directive": "%YAML 1.2\n---\nenv:\n  <NCCL_TIMEOUT: 600\n",
    "comments between": "env:\n# NCCL_TIMEOUT: 1\n  # NCCL_TIMEOUT: 1\n\n  <NCCL_TIMEOUT: 600 # NCCL_TIMEOUT: 1\n",
    "Chinese": "说明: 中文\nenv:\n  甲: 乙\n  <NCCL_TIMEOUT: 六百\n",
    "Chinese command": "command: >-\n  echo 中文 &&\n  <ray shutdown\n",
    "windows": "env:\r\n  A: 1\r\n  <NCCL_TIMEOUT: >-\r\n    600\r\n",
    "tabs": "env:\n  <NCCL_TIMEOUT:\t600\t# why\n",
    "GitHub": "jobs:\n  a:\n    steps:\n    - uses: x/y@v1\n    - name: go\n      run: >-\n        <ray shutdown\n",
    "Ansible": "- hosts: all\n  tasks:\n    - ansible.builtin.shell: |\n        <ray shutdown\n",
    "a file in Kubernetes": "kind: ConfigMap\ndata:\n  .env: |\n    A=b\n    <NCCL_TIMEOUT=600\n",
    "an emoji before it": "a: \U0001f600 {b}\ncommand: >-\n  echo \U0001f600;\n  <ray shutdown\n",
    "GitLab": "job:\n  variables: &v\n    <NCCL_TIMEOUT: '600'\n  script: !reference [.setup, script]\n",
    "template": "{% if a %}\nenv:\n  A: {{ b }}-{{ c }}\n  <NCCL_TIMEOUT: {{ t }}\n{% endif %}\n",
    "template of Helm": "{{- if .x }}\nenv:\n  {{- with y }}\n  <NCCL_TIMEOUT: {{ .z }}\n  {{- end }}\n{{- end }}\n",
    "template in a command": "a: {{ b }} c\ncommand: ray start --port={{ p }} <--storage={{ s }}\n",
    "tab as indentation": "a:\n\tb: 1\nenv:\n  <NCCL_TIMEOUT: 600\n",
    "bracket that stays open": "a: [b\nenv:\n  <NCCL_TIMEOUT: 600\n",
    "quote that stays open": "a: 'b\nenv:\n  <NCCL_TIMEOUT: 600\n",
    "line that is none": "env:\n  <NCCL_TIMEOUT: 600\n  some words\n  A: b: c\n",
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
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    lint_text("x.yaml", text, load_drift())
    assert time.process_time() - began < 10
