"""`rlbox eval`: scores of checkpoints, what they were made with, and which checkpoint is best."""

from __future__ import annotations

import click

from rlbox.cli.help import CommandGroup
from rlbox.cli.scores.eval_check import check
from rlbox.cli.scores.eval_choose import choose
from rlbox.cli.scores.eval_compare import compare
from rlbox.cli.scores.eval_get import get
from rlbox.cli.scores.eval_judge import judge
from rlbox.cli.scores.eval_prove import prove
from rlbox.cli.scores.eval_report import report
from rlbox.cli.scores.eval_show import show
from rlbox.cli.scores.eval_suites import suites


@click.group(cls=CommandGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --project DIR.")
def eval() -> None:
    """Judge checkpoints by suites of problems, say how sure a score is, and choose the best.

    A RESULT is the folder of one checkpoint that `rlbox eval judge` or the job sft wrote, or its summary.json.

    \b
    Examples:
      rlbox eval suites
      rlbox eval judge checkpoints/global_step_100 --suite human-eval --url http://127.0.0.1:8000
      rlbox eval compare eval/step_200 eval/step_100
    """


for command in (suites, prove, check, judge, show, compare, choose, report, get):
    eval.add_command(command)
