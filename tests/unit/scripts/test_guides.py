"""The pages that lead: the ten chapters of seed 004, and the planner's table against what it computes (P138)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.amounts import GIB
from rlbox.cli.root import COMMANDS
from rlbox.config.project import Project
from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.planner.needs import compute_run_needs, estimate_reported_gpu_bytes
from scripts.prose import strip_markdown

DOCS = CHECKOUT / "docs"
CHAPTERS = (
    "Requirements", "Instance", "Environment", "Data", "Smoke test", "Training", "Evaluation", "Results",
    "Troubleshooting", "Cost",
)  # fmt: skip
REFERENCE = ("proof",)
"""Pages that may have more than `MOST_WORDS`, as all that are made from the code."""
MOST_WORDS = 500
PAGES = sorted(path for part in ("", "jobs/", "zero/") for path in DOCS.glob(f"{part}*.md"))
CLAIM = re.compile(r"\b(?:each|every|never|same)\b", re.IGNORECASE)
NAMED = re.compile(r"<!-- test: (.*?) -->")
PAGES_WITH_CLAIMS = sorted((*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md")))
ROW = re.compile(r"\| (\d) x (\d+) GB \(.+?\) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|")


def test_every_chapter_has_commands_and_a_page() -> None:
    rows = [line for line in (DOCS / "workflow.md").read_text("utf-8").splitlines() if re.match(r"\| \d+\.", line)]
    assert [row.split("|")[1].strip().partition(". ")[2] for row in rows] == list(CHAPTERS)
    for row in rows:
        verbs = re.findall(r"`rlbox ([a-z]+)", row)
        assert verbs
        assert set(verbs) <= set(COMMANDS)
        pages = re.findall(r"\]\(([^)#]+)", row)
        assert pages
        assert [page for page in pages if not (DOCS / page).is_file()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_has_few_words_and_begins_with_an_example(path: Path) -> None:
    text = path.read_text("utf-8")
    prose = "\n".join(line for line in strip_markdown(text).splitlines() if not line.startswith("|"))
    assert path.stem in REFERENCE or len(re.findall(r"\b\w[\w'./-]*", prose)) <= MOST_WORDS
    begin = "\n".join(text.splitlines()[:10])
    block = begin.partition("```")[2].partition("\n")[2].partition("```")[0]
    assert [line for line in block.splitlines() if not line.startswith("$")]


@pytest.mark.parametrize("profile", ["rtx-4090-x4", "", "rtx-6000-pro-x2"])
def test_the_table_says_what_is_computed(profile: str) -> None:
    job = load_job(Project(folder=CHECKOUT), "sft")
    rows = {(int(gpus), int(gb)): rest for gpus, gb, *rest in ROW.findall((DOCS / "planner.md").read_text("utf-8"))}
    gpus, gb = {"rtx-4090-x4": (4, 24), "": (4, 32), "rtx-6000-pro-x2": (2, 96)}[profile]
    shard = 84 // gpus  # fp32 weights and two moments of 7 x 10^9 parameters
    said = [str(shard), str(gb - shard)]
    for offload in ("false", "true"):
        needs = compute_run_needs(
            job, resolve_params(job, profile, {"offload": offload}), estimate_reported_gpu_bytes("", gb)
        )
        assert needs
        said.append(f"{next(row.needed_bytes_per_gpu for row in needs.stages if row.stage == 'train') / GIB:.1f}")
    assert rows[gpus, gb] == said


def test_what_has_not_run_on_a_gpu_says_so_where_it_is_read() -> None:
    """The default of `sft` on the cards of its target, and when a hang was found too late."""
    sft = (DOCS / "jobs/sft.md").read_text("utf-8")
    assert "Four ranks on four RTX 5090 are untested" in sft
    assert load_job(Project(folder=CHECKOUT), "sft").params["offload"].help.endswith("untested on four GPUs of 32 GB")
    hangs = "".join((DOCS / name).read_text("utf-8") for name in ("hangs.md", "hangs-details.md"))
    assert "after 38.7 s, once in six times" in hangs


def test_tests_named_beside_claims_exist() -> None:
    named = {
        name for path in PAGES_WITH_CLAIMS for hit in NAMED.findall(path.read_text("utf-8")) for name in hit.split(", ")
    }
    assert len(named) > 100
    for name in sorted(named):
        file, _, test = name.partition("::")
        assert (CHECKOUT / file).is_file(), name
        assert f"def {test}(" in (CHECKOUT / file).read_text("utf-8"), name


def test_readme_claims_name_their_tests() -> None:
    prose = re.sub(r"^```.*?^```$", "", (CHECKOUT / "README.md").read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    claims = [text for text in re.split(r"\n\s*\n|\n(?=[-*|#>] ?)", prose) if CLAIM.search(strip_markdown(text))]
    assert len(claims) > 5
    assert [text for text in claims if not NAMED.search(text)] == []
