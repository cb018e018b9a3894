"""The pages of the reader's test: current, whole, and counting what they show."""

from __future__ import annotations

from fakes import CHECKOUT

from rlbox.config.project import Project
from scripts.docs.reader_docs import PAGES, ReaderTest, load_reader_test, reader_pages

PROJECT = Project(folder=CHECKOUT)
TEST = load_reader_test(CHECKOUT)


def test_the_pages_are_current() -> None:
    """Stale? `make docs` writes them."""
    pages = reader_pages(TEST, PROJECT.template_dirs())
    assert [name for name, text in pages.items() if (CHECKOUT / name).read_text("utf-8") != text] == []


def test_twelve_logs_of_twelve_layers_half_of_them_held_back() -> None:
    assert len({log.layer for log in TEST.log}) == len(TEST.log) == 12
    assert sum(log.half == "held" for log in TEST.log) == 6
    assert [log.layer for log in TEST.log if {"en", "zh"} != set(log.answer)] == []
    assert [log.layer for log in TEST.log if log.cause not in log.en or log.cause not in log.zh] == []


def test_a_wrong_answer_is_counted_and_shown() -> None:
    data = TEST.model_dump()
    data["log"][0]["answer"]["en"]["next_right"] = False
    other = ReaderTest.model_validate(data)
    assert other.right("en") == {"asked": 12, "cause": 12, "next": 11, "both": 11}
    assert other.right("en", TEST.log[0].half)["both"] == 5
    text = reader_pages(other, PROJECT.template_dirs())[PAGES["en"]]
    assert text.count("**wrong**") == 1
    assert "cause right in 12 of 12, next step in 11, both in 11" in text
