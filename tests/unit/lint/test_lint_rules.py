"""What the lint finds in lines that do not work, however they are spelt, and that it is silent on those that do."""

from __future__ import annotations

import sys

import pytest
from fakes import CASES as FOLDER

from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError
from rlbox.i18n import translate
from rlbox.lint.drift import load_drift_rules
from rlbox.lint.rules import lint_text
from rlbox.lint.shell import load_bash_parser

pytestmark = pytest.mark.allow("processes")  # bash -n
CASES = load_toml(FOLDER / "lint/rules.toml")


def rules_of(text: str, name: str = "x.sh") -> list[str]:
    """Return the rules found in a text, without notes, each once."""
    return sorted({one.rule for one in lint_text(name, text, load_drift_rules()) if one.severity != "note"})


BAD = CASES["bad"]


@pytest.mark.parametrize(("text", "rule"), BAD, ids=[f"{rule}-{i}" for i, (_, rule) in enumerate(BAD)])
def test_a_line_that_does_not_work_is_found(text: str, rule: str) -> None:
    assert rule in rules_of(text)


GOOD = CASES["good"]


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_a_line_that_works_is_left_alone(text: str) -> None:
    assert rules_of(text) == []


@pytest.mark.parametrize(("name", "text", "expected"), CASES["by_format"])
def test_what_the_format_decides_is_found(name: str, text: str, expected: list[str]) -> None:
    assert rules_of(text, name) == expected


def test_each_bound_without_quotes_is_found() -> None:
    text = "FROM a/b:1\nRUN pip install -U pip \\\n && pip install six>=1.16 wheel>=0.4 x\n"
    found = [(one.line, one.column) for one in lint_text("Dockerfile", text, load_drift_rules())]
    assert found == [(3, 20), (3, 32)]


def test_processes_ended_by_name_are_one_finding_with_all_lines() -> None:
    (found,) = lint_text("x.sh", "pkill -9 ray\nsleep 1\npkill -9 python\npkill -9 x", load_drift_rules())
    assert (found.line, "(3 in all: pkill; line(s) 1, 3, 4)" in found.what) == (1, True)


def test_more_than_three_findings_of_a_command_are_one() -> None:
    text = "python -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1 \\\n --bf16_x 1 \\\n --a_b 1 \\\n --a_c 1"
    (found,) = lint_text("x.sh", text, load_drift_rules())
    assert "(4 in all: --ref_num_nodes, --bf16_x, --a_b, --a_c; line(s) 1, 2, 3, 4)" in found.what
    (found,) = lint_text("x.sh", 'ssh h "ls /path/to/x"\nls /path/to/x', load_drift_rules())
    assert (found.line, found.rule) == (1, "placeholder")


def test_what_a_document_says_of_its_machine_decides() -> None:
    text = "docker run img:1 x\nuvicorn a:b --port 8080"
    assert rules_of(text) == []
    assert rules_of(f"# vast.ai\n{text}") == ["docker-run-on-rented", "vast-jupyter-port"]


def test_a_comment_switches_a_rule_off_for_its_line() -> None:
    assert rules_of("ray shutdown  # rlbox: ignore=ray-shutdown") == []
    assert rules_of("ray shutdown  # rlbox: ignore=nccl-timeout, ray-shutdown") == []
    assert rules_of("# rlbox: ignore=ray-storage\nray start --head \\\n  --storage=/s") == []
    assert rules_of("ray shutdown  # rlbox: ignore=ray-stop") == ["ray-shutdown"]
    assert rules_of("ray shutdown # rlbox: ignore=ray-shutdown\nray shutdown") == ["ray-shutdown"]


def test_a_secret_is_not_repeated() -> None:
    (found,) = lint_text("x.sh", 'RAY_PASSWORD="hunter22"', load_drift_rules())
    assert "hunter22" not in found.what + found.next_step


def test_place_and_texts_of_a_finding() -> None:
    (found,) = lint_text("a/x.sh", "ray start --head \\\n   --port 18100\n", load_drift_rules())
    assert (found.file, found.line, found.column, found.severity) == ("a/x.sh", 2, 4, "error")
    assert (
        found.what
        == "--port 18100 lies among the ports of Ray's workers: ValueError, the port is used by other components"
    )
    assert (
        found.next_step == "a port outside 10002-19999, or --min-worker-port and --max-worker-port that leave it free"
    )


def test_a_text_without_fields_has_single_braces() -> None:
    text = CASES["by_format"][0][1]
    (finding,) = lint_text("x.yaml", text, load_drift_rules())
    assert translate(finding.next_step).startswith("readinessProbe: {httpGet: {path: /health, port: PORT}}, ")


@pytest.mark.parametrize(("text", "versions", "expected"), CASES["versions"])
def test_the_version_decides(text: str, versions: dict[str, str], expected: list[list[str]]) -> None:
    found = lint_text("x.sh", text, load_drift_rules(), versions)
    assert [[one.rule, one.severity] for one in found] == expected


def test_the_range_is_said_when_no_version_is_known() -> None:
    (found,) = lint_text("x.sh", "export VLLM_ATTENTION_BACKEND=X", load_drift_rules())
    assert "(works with vllm <0.13, with a warning, vllm >=0.13,<0.15)" in found.what
    (found,) = lint_text("x.sh", "export VLLM_ATTENTION_BACKEND=X", load_drift_rules(), {"vllm": "0.26.0"})
    assert found.what.endswith("and here it is 0.26.0)")


@pytest.mark.parametrize(("text", "expected"), CASES["known_by_releases"])
def test_what_pinned_releases_do_not_know_is_found(text: str, expected: str) -> None:
    name = "Dockerfile" if text.startswith(("ENV", "FROM")) else "x.sh"
    found = [
        f"{one.line} {one.rule} {one.severity}: {one.next_step}"
        for one in lint_text(name, text, load_drift_rules())
        if one.severity != "note"
    ]
    assert len(found) == expected.count(",") + 1, found
    for part in expected.split(", "):
        assert any(part in one for one in found), found


KNOWN = CASES["known"]


@pytest.mark.parametrize("text", KNOWN, ids=range(len(KNOWN)))
def test_what_pinned_releases_know_is_left_alone(text: str) -> None:
    assert rules_of(text) == []


def test_an_unknown_option_is_an_error_where_the_release_is_known() -> None:
    (found,) = lint_text("x.sh", "vllm serve m --log-levl a", load_drift_rules(), {"vllm": "0.24.0"})
    assert (found.severity, "(vllm 0.24.0)" in found.what) == ("error", True)


def test_lint_without_the_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    load_bash_parser.cache_clear()
    with pytest.raises(SpecError) as error:
        lint_text("x.sh", "ls", load_drift_rules())
    load_bash_parser.cache_clear()
    assert error.value.next_step == "pip install 'rlbox[lint]'"


def test_a_base_image_that_sets_the_search_path_is_known() -> None:
    text = "FROM {image}@sha256:0\nENV LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH\n"
    found = {
        image: [one.rule for one in lint_text("Dockerfile", text.format(image=image), load_drift_rules())]
        for image in ("nvidia/cuda:13.0.0-devel", "debian")
    }
    assert found == {"nvidia/cuda:13.0.0-devel": [], "debian": ["empty-path-element"]}


def test_packages_that_are_replaced_on_purpose_are_left_alone() -> None:
    text = "FROM nvcr.io/nvidia/pytorch@sha256:0\nRUN pip uninstall -y flash_attn\nRUN pip install vllm==0.19.1"
    assert not lint_text("Dockerfile", text, load_drift_rules())
