"""Checks of Python: probes that cannot tell, settings that come too late, names that were renamed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rlbox.lint.drift import DriftRule
from rlbox.lint.hits import Hit, Where, hit_call
from rlbox.lint.read.document import Document, Snippet

_HUB_USERS = {"huggingface_hub", "transformers", "datasets", "diffusers", "vllm", "sglang", "trl", "peft", "accelerate"}
_PROBES = {"get_runtime_context", "is_initialized", "nodes", "cluster_resources", "available_resources"}
_LAUNCHED = {"MASTER_ADDR", "RANK", "WORLD_SIZE"}


def _alone(document: Document) -> Iterator[Snippet]:
    """Yield the snippets that `python -c` or a here-document runs by themselves."""
    return (snippet for snippet in document.snippets if snippet.how != "file" and snippet.call)


def _hit(snippet: Snippet, node: ast.expr | ast.stmt, **fields: str) -> Hit:
    start = snippet.start(node)
    return hit_call(snippet.call, start, **fields) if snippet.call else Hit(start=start, fields=fields)


def _called(snippet: Snippet) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(snippet.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def option_in_python(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find command lines that are written as Python: `torch.distributed.launch --help` is a subtraction."""
    for snippet in _alone(document):
        for node in ast.walk(snippet.tree):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.BinOp)):
                continue
            value = node.value
            minus = isinstance(value.op, ast.Sub) and isinstance(value.right, ast.UnaryOp)
            if minus and isinstance(value.left, (ast.Attribute, ast.Name)):
                yield _hit(snippet, node, name=ast.unparse(value.left))


def lone_process_group(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find process groups that one process without a launcher is to open."""
    known = {setting.name for setting in document.settings}
    for snippet in _alone(document):
        outer = snippet.call.outer if snippet.call else None
        launched = outer is not None and outer.program in ("torchrun", "srun", "mpirun", "mpiexec")
        if launched or known >= _LAUNCHED:
            continue
        for name, node in _called(snippet):
            given = {keyword.arg for keyword in node.keywords}
            if name.endswith("init_process_group") and not given & {"init_method", "rank", "store", "world_size"}:
                yield _hit(snippet, node, name=name)


def unattached_probe(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find questions about a cluster that a process asks without having joined it."""
    for snippet in _alone(document):
        calls = list(_called(snippet))
        if any(name == "ray.init" for name, _ in calls):
            continue
        for name, node in calls:
            if name.startswith("ray.") and name[4:] in _PROBES:
                yield _hit(snippet, node, name=name)


def late_hub_setting(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find variables of the Hugging Face hub that are set after the library has read them."""
    for snippet in document.snippets:
        first = _first_hub_import(snippet)
        for setting in document.settings if first else ():
            if setting.how == "python" and setting.name in rule.names:
                begin = snippet.piece.at[0]
                inside = begin <= setting.start <= snippet.piece.at[-1]
                if inside and document.lines.number(setting.start) > document.lines.number(begin) + first - 1:
                    yield Hit(start=setting.start, within=setting.within, fields={"name": setting.name})


def _first_hub_import(snippet: Snippet) -> int:
    """Return the line of the snippet, from 1, that first imports a user of the hub at top level; 0: none does."""
    for node in snippet.tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.split(".")[0] in _HUB_USERS for name in names):
            return node.lineno
    return 0


def renamed_in_python(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find keyword arguments and attributes that have another name now."""
    for snippet in document.snippets:
        for node in ast.walk(snippet.tree):
            found = ""
            if isinstance(node, ast.keyword):
                found, place = node.arg or "", node.value
            elif isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
                found, place = node.attr, node
            if found in rule.names and f"has{found}" not in rule.names:
                yield _hit(snippet, place, name=found, new=rule.renamed.get(found, ""))


def keyword_of(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find calls of the function `rule.command` with one of the keywords that the rule names."""
    for snippet in document.snippets:
        for name, node in _called(snippet):
            for keyword in node.keywords if name == rule.command else ():
                if keyword.arg in rule.names:
                    yield _hit(snippet, keyword.value, name=keyword.arg or "")
