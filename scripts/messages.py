"""Bring the translations up to date with the code: `python scripts/messages.py [--check]`.

Extracts every `_()` of `rlbox/`, the texts of doctor's findings, of lint's rules, of compat.toml and egress.toml, the
help of the commands, and what click says, into the .po file. `--check` writes nothing; it exits 1 where it would, or
where a translation is missing, fuzzy, or has other parameters or options than its msgid.
"""

from __future__ import annotations

import io
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_dir, extract_from_file
from babel.messages.pofile import read_po, write_po

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))


from rlbox.artifacts.profile import load_implicitly_contacted_hosts  # noqa: E402 - from this checkout
from rlbox.cli.help import unwrap_help_paragraphs_unless_marked  # noqa: E402
from rlbox.cli.root import COMMANDS, SECTIONS, root  # noqa: E402
from rlbox.cluster.checks import load_finding_texts as load_cluster_finding_texts  # noqa: E402
from rlbox.config.project import Project  # noqa: E402
from rlbox.config.toml_files import load_toml  # noqa: E402
from rlbox.doctor.catalogue import TRANSLATED_KEYS, load_finding_texts  # noqa: E402
from rlbox.fixes.catalogue import load_fix_catalogue  # noqa: E402
from rlbox.lint.drift import load_drift_rules  # noqa: E402
from rlbox.planner.stack_facts import COMPAT  # noqa: E402

PO = CHECKOUT / "rlbox/i18n/locale/zh/LC_MESSAGES/rlbox.po"
OPTION = re.compile(r"--[a-z][\w-]+")
KEYWORDS = {"_": None, "ngettext": (1, 2), "collecting_refusals_if_dry_run": None}
CLICK = ("core.py", "decorators.py", "exceptions.py", "formatting.py", "parser.py", "types.py")


def main(check: bool) -> int:
    """Update the .po file, or say what is wrong with it."""
    before = PO.read_text("utf-8")
    catalog = read_po(io.StringIO(before), locale="zh")
    catalog.update(extract(), no_fuzzy_matching=True)
    catalog.obsolete.clear()
    for message in catalog:
        message.flags.discard("python-brace-format")  # 21 KB; `find_problems` compares the parameters
    out = io.BytesIO()
    write_po(out, catalog, width=0, sort_output=True, omit_header=True, no_location=True)
    after = out.getvalue().decode()
    problems = [f"{message.id!r}: {problem}" for message in catalog if message.id for problem in find_problems(message)]
    if check and after != before:
        problems.append("the .po file is not up to date with the code: make messages")
    if not check:
        PO.write_text(after, "utf-8")
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    return int(bool(problems))


def extract() -> Catalog:
    """Return all messages that may be shown in another language."""
    catalog = Catalog(locale="zh")
    for _file, _line, text, _comments, _context in extract_from_dir(CHECKOUT / "rlbox", keywords=KEYWORDS):
        catalog.add(text)
    for text in data_texts():
        catalog.add(text)
    for name in CLICK:
        for _line, text, _comments, _context in extract_from_file("python", Path(click.__file__).with_name(name)):
            catalog.add(text)
    for text in (*COMMANDS.values(), *SECTIONS, *help_texts(root, click.Context(root))):
        catalog.add(text)
    return catalog


def data_texts() -> Iterator[str]:
    """Yield the texts of data files that are shown."""
    for row in (*load_finding_texts().values(), *load_cluster_finding_texts().values()):
        yield from (row[key] for key in TRANSLATED_KEYS & row.keys())
    for rule in load_drift_rules():
        yield from (rule.what, rule.next)
    for fact in load_toml(COMPAT)["fact"]:
        yield from (fact["says"],) if "says" in fact else ()
    for fix in load_fix_catalogue(Project(folder=CHECKOUT)):
        yield from filter(None, (fix.untested, *(patch.reason for patch in fix.bake.patch)))
        yield from (text for row in fix.bake.refuse for text in (row.says, row.next))
    for path in (*CHECKOUT.glob("images/*/target.toml"), *CHECKOUT.glob("rlbox/artifacts/profiles/*.toml")):
        yield load_toml(path)["title"]
    for path in CHECKOUT.glob("rlbox/target/platforms/*.toml"):
        yield load_toml(path)["restart"]["effect"]
    for path in CHECKOUT.glob("jobs/*.toml"):
        yield from job_texts(load_toml(path))
    for host in load_implicitly_contacted_hosts():
        yield from (host.why, host.rule)


def job_texts(job: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a job that are shown, and the names of the parts of what its stages need."""
    for row in (job, *job.get("services", ()), *job["stages"]):
        yield row["title"]
    yield from (param["help"] for param in job["params"].values())
    for needs in job.get("fits", {}).get("stages", {}).values():
        yield from (rule["says"] for rule in needs.get("rules", ()))
        yield from (name.replace("_", " ") for kind in ("card", "host", "disk") for name in needs.get(kind, ()))


def help_texts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the paragraphs of a command's help, the help of its options, and those of the commands below it."""
    for text in (command.help, command.epilog):
        yield from unwrap_help_paragraphs_unless_marked(text or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.help and not parameter.hidden:
            yield parameter.help
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if below := command.get_command(context, name):
                yield from help_texts(below, context)


def find_problems(message: Message) -> Iterator[str]:
    """Yield what is wrong with a translation."""
    msgids = message.id if isinstance(message.id, tuple) else (message.id,)
    texts = message.string if isinstance(message.string, tuple) else (message.string,)
    if message.fuzzy:
        yield "fuzzy"
    if not all(texts):
        yield "not translated"
    elif message.python_brace_format and {name for text in texts for name in parameters(text)} != parameters(
        msgids[-1]
    ):
        yield f"other parameters than {sorted(parameters(msgids[-1]))}"
    elif any(set(OPTION.findall(text)) != set(OPTION.findall(msgids[-1])) for text in texts):
        yield f"other options than {OPTION.findall(msgids[-1])}"


def parameters(text: str) -> set[str]:
    """Return the names of the parameters in a text for `str.format`."""
    return {name for _text, name, _spec, _conversion in string.Formatter().parse(text) if name}


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
