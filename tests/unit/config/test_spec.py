"""Loading: defaults, includes, the user's own keys, where files are found, the JSON Schema."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import CHECKOUT, TARGET, Folder, load_cases
from hypothesis import given
from hypothesis import strategies as st

from rlbox.cli.init import create_spec_json_schema
from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables_and_named_lists
from rlbox.errors import SpecError
from rlbox.job.job import Job, load_job
from rlbox.target.target import DEFAULTS, Target, load_target

CASES = load_cases("config", "test_spec")
SHIPPED = Project(folder=CHECKOUT)


def test_an_include_lies_under_the_file(folder: Folder) -> None:
    folder.target("mine", 'include = "local"\n[env]\nMINE = "1"\nOMP_NUM_THREADS = "4"\n[run]\nmemory_gib = 3\n')
    mine, local = load_target(folder.project, "mine"), load_target(folder.project, "local")
    assert mine.files == (folder.path / "images/mine/target.toml", *local.files)
    changed = mine.target.model_dump()
    assert changed.pop("env") == {**local.target.env, "MINE": "1", "OMP_NUM_THREADS": "4"}
    assert changed.pop("run") == {**local.target.run.model_dump(), "memory_gib": 3.0}
    assert {**local.target.model_dump(), **changed} == {**local.target.model_dump(), "name": "mine"}


def test_includes_of_includes(folder: Folder) -> None:
    folder.target("a", TARGET + '[env]\nA = "a"\nB = "a"\nC = "a"\n')
    folder.target("b", 'include = "a"\n[env]\nB = "b"\nC = "b"\n')
    folder.target("c", 'include = "b"\n[env]\nC = "c"\n')
    loaded = load_target(folder.project, "c")
    assert loaded.target.env == {"A": "a", "B": "b", "C": "c"}
    assert [path.parent.name for path in loaded.files] == ["c", "b", "a", "target"]


def test_keys_of_the_user_are_ignored(folder: Folder) -> None:
    folder.target("mine", "x-owner = 'me'\n" + TARGET + "[x-notes]\nanything = 1\n")
    assert load_target(folder.project, "mine").target.title == "smallest target"
    folder.target("mine", TARGET.replace("[[stack]]", "x-notes = 1\n[[stack]]"))
    with pytest.raises(SpecError, match=r"base\.x-notes: unknown key"):
        load_target(folder.project, "mine")


def test_defaults_are_a_target_but_for_what_has_none() -> None:
    data = load_toml(DEFAULTS)
    with pytest.raises(SpecError) as caught:
        validate_spec(Target, {**data, "name": "x"}, "defaults.toml")
    assert caught.value.what.splitlines()[1:] == [
        "  defaults.toml: base: set exactly one of bootstrap and image",
        "  defaults.toml: stack: missing",
        "  defaults.toml: title: missing",
    ]


@pytest.mark.parametrize(("under", "over", "merged"), CASES["merge"])
def test_merge(under: dict[str, Any], over: dict[str, Any], merged: dict[str, Any]) -> None:
    before = repr((under, over))
    assert merge_tables_and_named_lists(under, over) == merged
    assert repr((under, over)) == before


TREES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)
TABLES = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


@given(TABLES, TABLES)
def test_merge_keeps_what_lies_on_top(under: dict[str, Any], over: dict[str, Any]) -> None:
    assert merge_tables_and_named_lists(under, {}) == under
    assert merge_tables_and_named_lists({}, over) == over
    assert merge_tables_and_named_lists(over, over) == over
    assert merge_tables_and_named_lists(
        merge_tables_and_named_lists(under, over), over
    ) == merge_tables_and_named_lists(under, over)


def test_the_project_folder_comes_before_what_is_shipped(folder: Folder) -> None:
    assert folder.project.roots == (folder.path, CHECKOUT)
    assert SHIPPED.roots == (CHECKOUT,)
    assert folder.project.require_target_file("local") == CHECKOUT / "images/local/target.toml"
    own = folder.target("local")
    assert folder.project.require_target_file("local") == own
    assert folder.project.own_or_shipped_lock_file("local") == own.with_name("lock.json")
    folder.target("zz")
    folder.target("aa")
    assert list(folder.project.own_pack_and_shipped_target_files()) == sorted(
        {*SHIPPED.own_pack_and_shipped_target_files(), "aa", "zz"}
    )
    assert folder.project.list_existing_template_dirs_except_packs() == [CHECKOUT / "templates"]
    folder.write("templates/base.j2", "")
    assert folder.project.list_existing_template_dirs_except_packs() == [
        folder.path / "templates",
        CHECKOUT / "templates",
    ]


def keys_not_in(schema: dict[str, Any], node: dict[str, Any], value: Any, path: str = "") -> list[str]:
    """Return the paths in `value` that the schema does not know."""
    for option in (node, *node.get("anyOf", ())):
        if "$ref" in option:
            node = schema["$defs"][option["$ref"].rsplit("/", 1)[1]]
    if isinstance(value, list):
        if "items" not in node:  # a tuple, of words alone
            assert all(isinstance(item, str) for item in value), path
            return []
        return [bad for n, item in enumerate(value) for bad in keys_not_in(schema, node["items"], item, f"{path}[{n}]")]
    if not isinstance(value, dict):
        return []
    if "properties" not in node:
        [inner] = node.get("patternProperties", {"": node.get("additionalProperties")}).values()
        return [bad for key, item in value.items() for bad in keys_not_in(schema, inner, item, f"{path}.{key}")]
    unknown = [f"{path}.{key}" for key in value if key not in node["properties"] and not key.startswith("x-")]
    known = {key: item for key, item in value.items() if key in node["properties"]}
    return unknown + [
        bad
        for key, item in known.items()
        for bad in keys_not_in(schema, node["properties"][key], item, f"{path}.{key}")
    ]


@pytest.mark.parametrize("kind", ["target", "job"])
def test_schema_is_whole(kind: str) -> None:
    schema = create_spec_json_schema(kind)
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert schema["patternProperties"] == {"^x-": {"description": "your own keys; rlbox ignores them"}}
    assert "name" not in schema["properties"]
    text = repr(schema)
    for name in schema["$defs"]:
        assert f"#/$defs/{name}'" in text
    assert all(ref.split("'")[0] in schema["$defs"] for ref in text.split("#/$defs/")[1:]), (
        "a reference that leads nowhere"
    )


def test_schema_of_a_target_knows_defaults_and_includes() -> None:
    schema = create_spec_json_schema("target")
    assert schema["anyOf"] == [{"required": ["include"]}, {"required": ["title", "stack"]}]
    assert schema["properties"]["include"]["type"] == "string"
    for name, value in load_toml(DEFAULTS).items():
        table = value if isinstance(value, dict) else {name: value}
        node = schema["$defs"][name.capitalize()] if value and table is value else schema
        for key, default in table.items():
            assert node["properties"][key]["default"] == default
            assert key not in node.get("required", ())


@pytest.mark.parametrize("name", SHIPPED.own_pack_and_shipped_target_files())
def test_shipped_targets_use_keys_of_the_schema(name: str) -> None:
    schema, data = create_spec_json_schema("target"), load_toml(SHIPPED.require_target_file(name))
    assert keys_not_in(schema, schema, data) == []
    assert keys_not_in(schema, schema, {**data, "bse": 1, "run": {"pds": 1}}) == [".bse", ".run.pds"]
    assert load_target(SHIPPED, name).target.name == name


@pytest.mark.parametrize("name", SHIPPED.own_pack_and_shipped_job_files())
def test_shipped_jobs_use_keys_of_the_schema(name: str) -> None:
    schema, data = create_spec_json_schema("job"), load_toml(SHIPPED.require_job_file(name))
    assert keys_not_in(schema, schema, data) == []
    job = load_job(SHIPPED, name)
    assert isinstance(job, Job)
    assert job.target in SHIPPED.own_pack_and_shipped_target_files()
