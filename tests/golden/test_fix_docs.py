"""The committed pages of the fix catalogue are what `make docs` writes."""

from __future__ import annotations

import re
import sys

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.fixes.render import build_fix_template_values
from rlbox.lint.drift import load_drift_rules
from rlbox.target.target import load_target
from scripts.docs.coverage import coverage_problems, unknown_names
from scripts.docs.fix_docs import NAMES, fix_pages, load_catalogue

sys.path.insert(0, str(CHECKOUT / "scripts"))
from make_docs import stale_pages

SHIPPED = Project(folder=CHECKOUT)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return fix_pages(
        load_catalogue(SHIPPED, CHECKOUT / "tests/faults"), SHIPPED.list_existing_template_dirs_except_packs()
    )


def test_committed_pages_are_current() -> None:
    assert sorted(stale_pages()) == [], "stale pages: run `make docs`, and review the diff"


def test_every_fix_has_a_section_with_error_and_remedy(pages: dict[str, str]) -> None:
    index = pages["docs/fixes/README.md"]
    links = dict(re.findall(r"\| \[([\w-]+)\]\(([\w-]+\.md)#\1\)", index))
    assert {f"docs/fixes/{link}" for link in links.values()} == set(pages) - {"docs/fixes/README.md"}
    catalogue = load_catalogue(SHIPPED, CHECKOUT / "tests/faults")
    assert {fix for ids in catalogue.causes.without_cause.values() for fix in ids} <= set(links)
    for fix in catalogue.fixes:
        page = pages[f"docs/fixes/{links[fix.id]}"]
        section = re.split(r"\n## (?!#)", page.partition(f"\n## {fix.id}\n")[2])[0]
        wanted = [fix.remedy.strip(), *fix.bake.env, *fix.bake.packages]
        assert [text for text in wanted if text not in section] == [], fix.id


def test_rows_of_the_index_have_distinct_errors(pages: dict[str, str]) -> None:
    errors = re.findall(r"^\| (.+?) \| \[", pages["docs/fixes/README.md"], re.MULTILINE)
    assert len(errors) == len(set(errors))


def test_all_names_of_templates_are_listed() -> None:
    target = load_target(SHIPPED, "local").target
    assert set(build_fix_template_values(target, {})) == set(NAMES)


def test_demands_are_met_by_what_exists() -> None:
    catalogue = load_catalogue(SHIPPED, CHECKOUT / "tests/faults")
    assert coverage_problems(catalogue.rows, catalogue.faults) == ()
    rules = {rule.id for rule in load_drift_rules()}
    assert unknown_names(catalogue.demands, {fix.id for fix in catalogue.fixes}, rules) == ()
    tests = [demand.test.split("::") for demand in catalogue.demands.values() if demand.test]
    assert [row for row in tests if f"def {row[1]}(" not in (CHECKOUT / row[0]).read_text(encoding="utf-8")] == []
