"""Lines and where they are from; what an upgrade takes away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.inventory.messages import HOLE, Message
from rlbox.inventory.place import place, place_raised
from rlbox.inventory.table import FILE, Table, shipped
from rlbox.inventory.upgrade import deaths

sys.path.append(str(CHECKOUT / "scripts"))

from inventory_file import packed

MOST_BYTES = 4 << 20


def said(template: str, where: str, name: str = "ValueError", kind: str = "raise") -> Message:
    return Message(template=template.replace("_", HOLE), kind=kind, name=name, where=where)  # type: ignore[arg-type]


BLOCKS = said("needs _ blocks, has _", "engine/cache.py: check")
MEMORY = said("No available memory for the cache blocks", "engine/cache.py: check")
RENAMED = said("No memory is left for the cache blocks", "engine/cache.py: check_memory")
SHAPE = said("shapes of rank _ differ", "trainer/data.py: Loader.next", "RuntimeError")
LINE = "ValueError: No available memory for the cache blocks"
FILLER = [
    said(f"filler number{n} of the table says {n} times nothing", f"engine/{n}.py: f{n}", "log", "log")
    for n in range(400)
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    engine = [("1.0", [BLOCKS, MEMORY, *FILLER]), ("1.1", [BLOCKS, MEMORY]), ("1.2", [BLOCKS, RENAMED])]
    trainer = [("2.0", [SHAPE, said("needs _ blocks, has _", "trainer/pool.py: Pool.take")])]
    (tmp_path / "messages.zip").write_bytes(packed({"engine": engine, "trainer": trainer}))
    return Table(tmp_path / "messages.zip")


def test_a_line_is_placed_at_package_versions_and_function(table: Table) -> None:
    found = place(
        "(EngineCore pid=7) ERROR 11-25 10:00:00 [core.py:7] ValueError: No available memory for the cache blocks.",
        table=table,
    )
    assert found is not None
    assert found.as_json() == {"package": "engine", "versions": "1.0-1.1", "where": "engine/cache.py: check"}


def test_of_two_that_say_the_same_the_package_of_the_log_is_taken(table: Table) -> None:
    line = "ValueError: needs 12 blocks, has 7"
    assert place(line, {"trainer": "2.0"}, table).package == "trainer"  # type: ignore[union-attr]
    found = place(line, {"engine": ""}, table)
    assert found is not None
    assert (found.package, found.versions, found.rivals) == ("engine", "1.0-1.2", ())
    alike = place(line, table=table)
    assert alike is not None
    assert {alike.package, *alike.rivals} == {"engine", "trainer"}


def test_an_exception_of_a_known_package_is_placed_by_its_name(table: Table) -> None:
    found = place("trainer.errors.OutOfRowsError: 17", table=table)
    assert found is not None
    assert found.as_json() == {"package": "trainer", "versions": "", "where": "trainer/errors: OutOfRowsError"}


def test_a_traceback_says_where_what_no_package_wrote_was_raised(table: Table) -> None:
    """The interpreter's words, and those of the inventory that stand in a function which was not passed through."""
    site = "/opt/venv/lib/python3.11/site-packages"
    frames = [("/data/train.py", "<module>"), (f"{site}/engine/cache.py", "grow"), (f"{site}/other/a.py", "b")]
    places = {"package": "engine", "versions": "", "where": "engine/cache.py: grow"}
    for line in ("KeyError: 'a'", LINE):
        found = place_raised(line, frames, table=table)
        assert found is not None
        assert found.as_json() == places
    known = place_raised(LINE, [*frames, (f"{site}/engine/cache.py", "check")], table=table)
    assert known is not None
    assert (known.where, known.versions) == ("engine/cache.py: check", "1.0-1.1")
    assert place_raised("KeyError: 'a'", frames[:1], table=table) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 3 loss 0.7",
        "ValueError: 12",
        "needs",
        "it speaks of blocks and of what it needs, has",
        "\0\xff",
    ],
)
def test_what_nobody_says_is_not_placed(table: Table, line: str) -> None:
    assert place(line, table=table) is None


def test_the_same_messages_give_the_same_file(tmp_path: Path, table: Table) -> None:
    engine = [("1.0", [*FILLER, MEMORY, BLOCKS])]
    assert packed({"engine": engine}) == packed({"engine": [("1.0", [BLOCKS, *reversed(FILLER), MEMORY])]})


def test_an_upgrade_names_the_signatures_that_die(table: Table) -> None:
    catalogue = {
        "kv-cache-no-memory": ["No available memory for the cache", "No memory is left for"],
        "kv-cache-blocks": [r"needs \d+ blocks"],
        "elsewhere": ["Connection refused"],
    }
    found = deaths(catalogue, table.of("engine"), "1.1", "1.2")
    assert [(death.signature, death.pattern) for death in found] == [
        ("kv-cache-no-memory", "No available memory for the cache")
    ]
    assert deaths(catalogue, table.of("engine"), "1.0", "1.1") == []


DEVICE = "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` "
EMPTY = "datasets.data_files.EmptyDatasetError: The directory at /x doesn't contain any data files"
TEMPLATE = (
    "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument"
    " was passed! For information about writing templates"
)


@pytest.mark.parametrize(
    ("line", "package", "function"),
    [
        (DEVICE + "to turn on verbose logging to help debug the issue.", "vllm", "__post_init__"),
        (EMPTY, "datasets", "get_data_patterns"),
        (TEMPLATE, "transformers", "get_chat_template"),
    ],
)
def test_the_shipped_inventory_places_lines_of_the_stacks(line: str, package: str, function: str) -> None:
    found = place(line)
    assert found is not None
    assert (found.package, found.where.rpartition(".")[2].rpartition(": ")[2]) == (package, function)


def test_the_shipped_inventory_is_small_and_holds_the_pins() -> None:
    assert FILE.stat().st_size < MOST_BYTES
    assert {"torch", "vllm", "sglang", "ray", "verl", "transformers", "deepspeed", "megatron-core"} <= set(
        shipped().packages
    )
    assert "0.12.0" in shipped().packages["vllm"]
