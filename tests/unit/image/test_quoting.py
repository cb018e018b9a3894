"""Values in a Dockerfile: whatever the spec lets through comes out of the builder as it went in."""

from __future__ import annotations

import re

import pytest
from fakes import CHECKOUT, TARGET, Folder
from hypothesis import example, given
from hypothesis import strategies as st

from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables_and_named_lists
from rlbox.errors import SpecError
from rlbox.image.plan import plan_image_without_tag
from rlbox.image.templates import quote_dockerfile, render_template
from rlbox.target.target import DEFAULTS, Target, load_target

CONTROL = [chr(code) for code in (*range(32), 127)]
VALUES = st.text(st.characters(codec="utf-8", exclude_characters=CONTROL), max_size=12) | st.text(
    st.sampled_from("\\\"'$ #{}`=a"), max_size=8
)


def instructions(text: str) -> list[str]:
    """Return the instructions of a Dockerfile, as BuildKit's parser joins their lines.

    Source: moby/buildkit frontend/dockerfile/parser: lines end at line feeds, comments and blank lines are dropped
    inside an instruction too, and a line goes on when it ends with one backslash that is not escaped.
    """
    found, current = [], ""
    for line in text.split("\n"):
        stripped = line.strip(" \t")
        if stripped.startswith("#") or not stripped:
            continue
        goes_on = re.search(r"(?:^|[^\\])\\[ \t]*$", line)
        current += re.sub(r"\\[ \t]*$", "", line) if goes_on else line
        if not goes_on:
            found.append(current.strip())
            current = ""
    assert not current
    return found


def words(rest: str) -> list[str]:
    """Cut `A="b c" D=e` at blanks outside quotes, quotes and backslashes kept (parseWords)."""
    found, word, quote, escaped = [], "", "", False
    for character in rest:
        if character in " \t" and not quote and not escaped:
            found += [word] if word else []
            word = ""
            continue
        word += character
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif character == quote:
            quote = ""
        elif character in "\"'" and not quote:
            quote = character
    assert not quote
    return found + ([word] if word else [])


def expanded(text: str) -> str:
    """Return a double-quoted word as the builder's lexer reads it; a variable that it would expand is an error."""
    assert text[0] == text[-1] == '"'
    result, rest = "", text[1:-1]
    while rest:
        if rest[0] == "\\" and rest[1:2] in ('"', "$", "\\"):
            result, rest = result + rest[1], rest[2:]
            continue
        assert rest[0] not in '"$', f"{rest[0]!r} is not escaped in {text!r}"
        result, rest = result + rest[0], rest[1:]
    return result


OWN = ("LANG", "PATH", "PYTHONUNBUFFERED", "RLBOX_LIMITS")  # what every image sets


def environment(dockerfile: str) -> dict[str, str]:
    """Return what the last ENV of a Dockerfile sets, but for rlbox's own."""
    [*_, line] = [line for line in instructions(dockerfile) if line.startswith("ENV ")]
    pairs = dict(word.split("=", 1) for word in words(line.removeprefix("ENV ")))
    return {name: expanded(value) for name, value in pairs.items() if name not in OWN}


@given(VALUES)
@example('a"b')
@example("$HOME ${X:-y} \\$")
@example("ends with \\")
@example("\\\\\\")
@example("'\"'")
@example("# no comment")
@example("\u2028\x85\xa0 not ascii \u00e4\u4e16")
def test_a_value_comes_out_as_it_went_in(value: str) -> None:
    assert expanded(quote_dockerfile(value)) == value
    assert words(f"A={quote_dockerfile(value)} B=1") == [f"A={quote_dockerfile(value)}", "B=1"]


NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,8}\Z").filter(lambda name: name not in OWN)


@given(env=st.dictionaries(NAMES, VALUES, max_size=4), title=VALUES)
def test_a_dockerfile_says_what_the_spec_says(env: dict[str, str], title: str) -> None:
    data = {"base": {"bootstrap": "debian:bookworm"}, "stack": [{"name": "tools", "packages": ["six"]}]}
    target = validate_spec(
        Target,
        merge_tables_and_named_lists(load_toml(DEFAULTS), {**data, "name": "mine", "title": title, "env": env}),
        "x",
    )
    text = plan_image_without_tag(target, None, (), [CHECKOUT / "templates"]).rendered_files["images/mine/Dockerfile"]
    assert environment(text) == env
    kinds = [line.split(" ")[0] for line in instructions(text)]
    assert kinds == [
        "FROM", "ADD",
        "FROM", "ARG", "COPY", "RUN",
        "FROM", "RUN",
        "FROM", "RUN",
        "FROM", "RUN",
        "FROM", "COPY", "RUN",
        "FROM", "COPY", "RUN",
        "FROM", "COPY", "RUN",
        "FROM", *["COPY"] * 6, "ENV", *(["ENV"] if env else []),
        "WORKDIR", "ENTRYPOINT", "CMD", "LABEL",
    ]  # fmt: skip


@pytest.mark.parametrize("character", CONTROL, ids=repr)
def test_a_control_character_is_refused(folder: Folder, character: str) -> None:
    folder.target("mine", TARGET + f'[env]\nA = "a\\u{ord(character):04x}b"\n')
    with pytest.raises(SpecError) as caught:
        load_target(folder.project, "mine")
    assert caught.value.what.splitlines()[1] == (
        "  images/mine/target.toml: env.A: holds the control character "
        f"{character!r}, which no line of a Dockerfile can"
    )


def test_words_of_a_shell_line_are_quoted(folder: Folder) -> None:
    folder.target("mine", TARGET + '[python]\ninterpreter = "/opt/$(x)/it\'s"\n')
    target = load_target(folder.project, "mine").target
    text = plan_image_without_tag(target, None, (), [CHECKOUT / "templates"]).rendered_files["images/mine/Dockerfile"]
    word = """'/opt/$(x)/it'"'"'s'"""
    for step in ("uv", "runtime", "venv"):
        assert f" sh /opt/tools/install.sh {step} {word}\n" in text
    assert f" sh /opt/tools/install.sh layers {word}\n" in text


def test_paths_of_the_image_are_quoted(folder: Folder) -> None:
    more = """
[[git]]
name = "tree"
url = "https://git.example/tree"
ref = "main"
into = '/opt/$(x)"'
[[http]]
name = "file"
url = "https://files.example/file"
into = '/opt/${HOME}\\'
[[patches]]
file = "one.diff"
into = "/opt/$(x);y"
"""
    folder.target("mine", TARGET + more)
    target = load_target(folder.project, "mine").target
    text = plan_image_without_tag(target, None, (), [CHECKOUT / "templates"]).rendered_files["images/mine/Dockerfile"]
    words_of = {line.split()[0]: line.split()[-1] for line in instructions(text) if " unlocked " in line}
    assert {kind: expanded(word) for kind, word in words_of.items()} == {
        "ADD": '/out/tree/opt/$(x)"/',
        "COPY": "/out/file/opt/${HOME}\\",
    }
    assert "\n# one.diff: changes /opt/$(x);y\n" in text


def test_a_name_that_a_template_does_not_get_is_an_error(folder: Folder) -> None:
    folder.write("templates/x.j2", "{{ nothing }}")
    with pytest.raises(Exception, match="'nothing' is undefined"):
        render_template(folder.project.list_existing_template_dirs_except_packs(), "x.j2", {})
