"""The pages of `docs/` about the reader's test: what was shown of a log, what readers understood, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from rlbox.config.schema import Name, SingleLine, SpecModel, validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.image.templates import create_docs_environment
from scripts.docs.fix_docs import fence

TABLE = "tests/faultlab/reader.toml"
PAGES = {"en": "docs/internal/reader.md", "zh": "docs/internal/reader.zh.md"}
Language = Literal["en", "zh"]


class ReaderAnswer(SpecModel):
    """What one reader said of one log, and whether the key says the same."""

    cause: SingleLine
    next: SingleLine
    cause_right: bool
    next_right: bool
    note: SingleLine = Field("", description="why it counts as it does, where that is not plain")


class ShownLog(SpecModel):
    """One log of the fault lab: where it is from, what it is labelled with, and the four lines in both languages."""

    layer: Name
    half: Literal["open", "held"]
    cause: Name
    versions: str
    done: SingleLine = Field(description="what was done to have it fail")
    right: SingleLine = Field(description="the next step that an answer must name")
    right_zh: SingleLine
    en: str
    zh: str
    answer: Mapping[Language, ReaderAnswer]

    def lines(self, language: Language) -> str:
        """Return the four lines."""
        return self.en if language == "en" else self.zh


class ReaderTest(SpecModel):
    """The whole test: `date` is the day on which the lines were shown, `seed` what the lot began with."""

    seed: int
    date: SingleLine
    log: tuple[ShownLog, ...]

    def right(self, language: Language, half: str = "") -> Mapping[str, int]:
        """Return how many answers were right in `cause`, `next` and `both`, of `asked`; of one half, or of both."""
        answers = [log.answer[language] for log in self.log if half in ("", log.half)]
        return {
            "asked": len(answers),
            "cause": sum(one.cause_right for one in answers),
            "next": sum(one.next_right for one in answers),
            "both": sum(one.cause_right and one.next_right for one in answers),
        }


def load_reader_test(checkout: Path) -> ReaderTest:
    """Return the test that a checkout keeps; `SpecError` when its file is broken."""
    path = checkout / TABLE
    return validate_spec(ReaderTest, load_toml(path), str(path))


def reader_pages(test: ReaderTest, templates: Sequence[Path]) -> dict[str, str]:
    """Return the page of each language by its name; `templates` are the folders that have `docs/*.j2`."""
    languages: tuple[Language, ...] = ("en", "zh")
    return {
        PAGES[language]: create_docs_environment(templates, fence=fence)
        .get_template(f"docs/reader.{language}.md.j2")
        .render(test=test, language=language)
        for language in languages
    }
