"""`rlbox eval check`: whether an export is the checkpoint that it was made of."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import shared
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _

_NAMED = 20
"""Faults that are named, at most; -v names all."""
_STACK = Path("/opt/venv/bin/python")
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command("check")
@click.argument("export", metavar="EXPORT", type=click.Path(path_type=Path))
@click.option("--against", required=True, metavar="DIR", type=_FOLDER, help="The trainer's checkpoint: its shards.")
@click.option(
    "--model", metavar="DIR", type=_FOLDER, help="Whose tokenizer and configuration are due [DIR/huggingface]."
)
@click.option(
    "--python", default="", metavar="FILE", help="Interpreter with torch and the merger [/opt/venv/bin/python]."
)
@click.option(
    "--dtype", default="", metavar="NAME", help="The cast that is due, such as bfloat16 [EXPORT's config.json]."
)
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Beginning of the trainer's names, and EXPORT's.")
@click.option("--logits", is_flag=True, help="Also load both with transformers, and compare a few logits.")
@shared
def check(
    app: App,
    export: Path,
    against: Path,
    model: Path | None,
    python: str,
    dtype: str,
    rename: tuple[str, ...],
    logits: bool,
) -> int:
    """Compare EXPORT, a checkpoint in Hugging Face's form, with the trainer's shards, tensor by tensor and bit by bit.

    Shards are merged first, into TMPDIR, by the framework that wrote them: those of FSDP by verl.model_merger, those of
    DeepSpeed (ZeRO 1 to 3) by its zero_to_fp32. Tokenizer, chat template and configuration must be those of --model.
    Exit code 1 where something differs.

    \b
    Examples:
      rlbox eval check ckpts/global_step_100/huggingface --against ckpts/global_step_100 --model models/Qwen3-8B
      rlbox eval check export --against ckpts/global_step_100/actor --python /opt/venv/bin/python --logits
    """
    from rlbox.evaluation.export import find_export
    from rlbox.evaluation.export_check import (
        ComparisonFailedError,
        ExportCheckOptions,
        TorchMissingError,
        check_export,
        find_trainer_model,
        format_report,
    )

    rules = [_rule(text) for text in rename]
    own = python or (str(_STACK) if _STACK.is_file() else sys.executable)
    try:
        folder = find_export(export).path
        if not (whose := model or find_trainer_model(folder, against)):
            step = f"rlbox eval check {shlex.quote(str(export))} --against {shlex.quote(str(against))} --model DIR"
            raise SpecError(_("no model says which tokenizer is due"), where=str(against), next_step=step)
        wish = ExportCheckOptions(
            export=folder, against=against, model=whose, python=own, dtype=dtype, rename=rules, logits=logits
        )
        report = check_export(wish, lambda done, of: app.say(f"{done} of {of} tensors are compared"))
    except TorchMissingError as error:
        step = _("name an interpreter that has torch with --python FILE")
        raise SpecError(_("{own} has no torch: {error}").format(own=own, error=error), next_step=step) from error
    except ComparisonFailedError as error:
        raise WorkFailed(_("nothing was compared: {error}").format(error=error), where=str(against)) from error
    except ValueError as error:
        raise SpecError(str(error)) from error
    named = len(report.faults) if app.verbosity > 0 else _NAMED
    app.result({"check": report.as_json()}, "\n".join(format_report(report, named)))
    return 0 if report.good else WorkFailed.exit_code


def _rule(text: str) -> tuple[str, str]:
    old, found, new = text.partition("=")
    if not found or not old:
        raise click.UsageError(_("--rename wants OLD=NEW: --rename model.language_model.=model."))
    return old, new
