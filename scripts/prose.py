"""Count constructions that readers stumble over, in README, docs, help and messages. `make lint` fails above limits.

    python scripts/prose.py            the figures of each group
    python scripts/prose.py --show     with every place
    python scripts/prose.py FILE…      of these Markdown files

A marker is a match of `MARKERS`. Code blocks, inline code and link addresses do not count.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from babel.messages.pofile import read_po

CHECKOUT = Path(__file__).resolve().parents[1]
LONG_SENTENCE = 30
"""Words of a sentence above which it is long."""
_FREE_RELATIVE = r"it|they|he|she|is|are|was|were|ha[sd]|have|does|an?|the|this|that|these|those|each|every|one"
MARKERS = {
    "free relative": r"\b(?:whoever|whomever|whatever|whichever|whosoever)\b|\bwhose it is\b"
    rf"|\bwhat (?:{_FREE_RELATIVE})\b(?![^.]*\?)",
    "person": r"\b(?:somebody|nobody|anybody)\b",
    "calque": r"(?<!there )\b(?:is|are|was|were|be) no (?!longer\b|more\b|such\b)\w+"
    r"|\bof (?:its|their|one's|your|his|her) own\b|\bbesides?\b|\banew\b|\b(?:that|those) of\b|\bwhole\b|\bstands\b"
    r"|, too\b|\bby itself\b",
    "metaphor": r"\b(?:houses?|rooms?|floors?|doors?|stor(?:y|ies)|walls?(?![ -](?:time|clock))|lanes?|keepers?"
    r"|wardens?|witness(?:es)?|pits?|deeds?|cards?)\b",
    "private number": r"\b[PB](?!200)\d{3}\b|\bseed 00\d|\bnotes? 00\d",
}
_PATTERN = re.compile("|".join(f"(?P<m{number}>{text})" for number, text in enumerate(MARKERS.values())), re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Texts that have one limit: markers per 1,000 words, and the share of sentences that are long."""

    name: str
    texts: dict[str, str]
    markers: float
    long_share: float


@dataclass(kw_only=True)
class Count:
    """What was counted in the texts of a group."""

    words: int = 0
    sentences: int = 0
    markers: list[str] = field(default_factory=list)
    long_sentences: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Markers per 1,000 words."""
        return 1000 * len(self.markers) / max(1, self.words)

    @property
    def long_share(self) -> float:
        """Share of sentences that are long."""
        return len(self.long_sentences) / max(1, self.sentences)


def count(texts: dict[str, str]) -> Count:
    """Count markers and long sentences in texts by their names."""
    found = Count()
    for name, text in texts.items():
        for sentence in split_sentences(text):
            words = len(sentence.split())
            found.words += words
            found.sentences += 1
            if words > LONG_SENTENCE:
                found.long_sentences.append(f"{name}: {words} words: {sentence}")
            for match in _PATTERN.finditer(sentence):
                start = max(0, match.start() - 40)
                found.markers.append(f"{name}: {match[0]}: …{sentence[start : match.end() + 40]}…")
    return found


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph text; a list item, a heading and a cell of a table end one."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#>]|\d+\.)\s?)|(?<=\|)", text):
        flat = " ".join(paragraph.strip(" |#>*-\n").split())
        yield from (part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`(]|rlbox)|;\s", flat) if re.search(r"\w", part))


def strip_markdown(text: str) -> str:
    """Return the prose of a Markdown page: no code, no comments, no addresses of links."""
    text = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\s*)(`{3,}|~{3,}).*?^\s*\2[`~]*\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "CODE", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def strip_message(text: str) -> str:
    """Return a message without its fields and option names."""
    return re.sub(r"\{[^{}]*\}|--[\w-]+|`[^`]*`", "X", text)


def read_pages(*patterns: str) -> dict[str, str]:
    """Return the prose of pages by path."""
    paths = sorted({path for pattern in patterns for path in CHECKOUT.glob(pattern)})
    return {path.relative_to(CHECKOUT).as_posix(): strip_markdown(path.read_text(encoding="utf-8")) for path in paths}


def read_help() -> dict[str, str]:
    """Return the help of every command, and of its options, by the command's name."""
    from rlbox.cli.root import root

    return dict(_command_help(root, "rlbox"))


def _command_help(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    options = [option.help or "" for option in command.params if isinstance(option, click.Option)]
    body = re.split(r"\n\s*(?:\x08|Examples?:|Exit codes:)", command.help or "")[0]
    yield name, strip_message("\n\n".join([body, *options]))
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            if found is not None and not found.hidden:
                yield from _command_help(found, f"{name} {word}")


def read_messages() -> dict[str, str]:
    """Return the messages that are translated, by themselves; help texts are among them."""
    with (CHECKOUT / "rlbox/i18n/locale/zh/LC_MESSAGES/rlbox.po").open("rb") as file:
        catalogue = read_po(file, locale="zh")
    ids = [row.id if isinstance(row.id, str) else row.id[0] for row in catalogue if row.id]
    return {text[:60]: strip_message(text) for text in ids}


def groups() -> list[Group]:
    """Return the groups with their limits."""
    return [
        Group(name="README", texts=read_pages("README.md"), markers=1, long_share=0.03),
        Group(
            name="docs",
            # docs/proof.md is made from the notes of kept runs
            texts=read_pages("docs/[!p]*.md", "docs/p[!r]*.md", "docs/zero/*.md", "docs/jobs/*.md", "[!R]*.md"),
            markers=2,
            long_share=0.03,
        ),
        Group(name="fix pages", texts=read_pages("docs/fixes/*.md"), markers=1, long_share=0.03),
        Group(name="help", texts=read_help(), markers=1, long_share=0.03),
        Group(name="messages", texts=read_messages(), markers=1, long_share=0.03),
    ]


def main() -> int:
    """Print the figures; return 1 where a group is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    own = {str(path): strip_markdown(path.read_text(encoding="utf-8")) for path in args.files}
    chosen = [Group(name="files", texts=own, markers=2, long_share=0.03)] if own else groups()
    over = False
    for group in chosen:
        found = count(group.texts)
        bad = found.rate > group.markers or found.long_share > group.long_share
        over |= bad
        sys.stdout.write(
            f"{group.name:10} {found.words:6} words  {found.rate:5.1f} of {group.markers:g} markers per 1,000  "
            f"{found.long_share:5.1%} of {group.long_share:.0%} long sentences{'  OVER' if bad else ''}\n"
        )
        if args.show:
            sys.stdout.writelines(f"  {line}\n" for line in (*found.markers, *found.long_sentences))
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
