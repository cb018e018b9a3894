"""Write rlbox/diagnose/api_names.json.xz: public names that only some releases of a library have, out of their wheels.

    python scripts/api_names.py FOLDER [PACKAGE ...]    # downloads wheels with pip; FOLDER keeps what was read of each

With names of packages only these are read, and the rows of the others stay as they are.

Of each minor release the first patch release is read. A name is a dotted path of a module, class or function,
`Class.__init__(argument`, `function(argument` or `Class#attribute`. Left out: names with an underscore, names as old
as the module or class that they are of. Of a name that was away for a while the first releases count.
"""

from __future__ import annotations

import ast
import json
import lzma
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.version import Version

from rlbox.diagnose.api_names import find_transformers_model_module_or_empty

OUT = Path(__file__).parents[1] / "rlbox/diagnose/api_names.json.xz"
PIP = ("pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--ignore-requires-python")
PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{glibc}_x86_64" for glibc in range(24, 40)))
PYTHONS = ("3.12", "3.10")
"""Wheels with compiled code of older releases are for the older one alone."""
OLDEST = {"trl": "0.9", "peft": "0.8", "accelerate": "0.28", "transformers": "4.40", "vllm": "0.6", "verl": "0.2"}
OLDEST |= {"megatron-core": "0.11", "sglang": "0.4.6"}
PARTS = {"sglang": 3}
"""Of packages whose releases differ in the third number: how many numbers tell releases apart."""
INTERNAL = {
    "trl": r"trl\.(scripts|commands|extras\.vllm_client\.)",
    "peft": r"peft\.tuners\.\w+\.(layer|bnb|gptq|aqlm|awq|eetq|hqq|tp_layer|inc|dora|variants)",
    "accelerate": r"accelerate\.(commands|test_utils)\b",
    "transformers": r"transformers\.(models\.(?!auto\b)|commands|cli|kernels|onnx|sagemaker|benchmark|testing_utils"
    r"|utils\.dummy|convert_|quantizers\.|integrations\.|\w*(tf|flax|keras)_|modeling_(tf|flax)"
    r"|generation\.(tf|flax)|pipelines\.|loss\.|distributed\.|data\.(test|processors|datasets|metrics)|exporters\.)",
    "vllm": r"vllm\.(model_executor\.(models|kernels|warmup)\.|benchmarks|attention\.(ops|backends)\.|v1\.attention"
    r"|third_party|compilation|transformers_utils\.(configs|processors|chat_templates|tokenizers)|tool_parsers\."
    r"|kernels|tokenizers\.|renderers\.|parser\.|ir\.|assets|profiler|tracing|vllm_flash_attn"
    r"|model_executor\.layers\.(quantization|fused_moe|mamba|fla)\.|distributed\.(kv_transfer|ec_transfer|eplb)\."
    r"|entrypoints\.(openai\.(tool|reason|parser)|cli|serve|pooling|mcp)|reasoning\.|plugins|lora\.(ops|punica)"
    r"|model_executor\.offloader|v1\.(sample|spec_decode|kv_offload|structured_output|pool)\.)",
    "verl": r"verl\.(third_party|models|experimental|tools|trainer\.config)\.",
    "megatron-core": r"megatron\.(?!core\b)|megatron\.core\.(datasets|export|inference|post_training|quantization"
    r"|ssm(?!\.mamba_hybrid)|tokenizers|resharding|models\.(?!gpt\b)|distributed\.fsdp)\.",
    "sglang": r"sglang\.(?!srt\.(server_args|managers\.io_struct|entrypoints|utils|weight_sync)\b"
    r"|srt\.model_executor\.model_runner$)",
}
"""Modules of which only the module's own name counts."""
CLASSES = {
    "SFTConfig", "GRPOConfig", "DPOConfig", "RewardConfig", "PPOConfig", "RLOOConfig", "ModelConfig", "SFTTrainer",
    "GRPOTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer", "PPOTrainer", "RLOOTrainer",
    "DataCollatorForLanguageModeling", "VLLMClient", "TrainingArguments", "Trainer", "BitsAndBytesConfig",
    "PreTrainedTokenizerBase", "LoraConfig", "PeftModel", "Accelerator", "FullyShardedDataParallelPlugin",
    "DeepSpeedPlugin", "EngineArgs", "LLM", "SamplingParams", "DataProto", "TransformerConfig", "OptimizerConfig",
    "DistributedDataParallelConfig", "ModelParallelConfig", "GPTModel", "initialize_model_parallel",
    "finalize_model_grads", "ServerArgs",
}  # fmt: skip
"""Those whose arguments are in the table."""
OBJECTS = {
    "SFTConfig", "GRPOConfig", "SFTTrainer", "GRPOTrainer", "Trainer", "TrainingArguments", "DynamicCache",
    "PreTrainedTokenizerBase", "LLM", "SamplingParams",
}  # fmt: skip
"""Classes whose attributes are in the table."""
MODULES = {
    "trl", "trl.core", "trl.models", "trl.trainer", "trl.trainer.utils", "peft", "peft.utils", "accelerate",
    "accelerate.utils", "accelerate.utils.memory", "transformers", "transformers.cache_utils",
    "transformers.generation", "transformers.generation.logits_process", "transformers.generation.utils",
    "transformers.modeling_utils", "transformers.models", "transformers.tokenization_utils_base",
    "transformers.trainer", "transformers.trainer_utils", "transformers.training_args", "transformers.utils",
    "transformers.utils.generic", "vllm", "vllm.config", "vllm.distributed", "vllm.distributed.parallel_state",
    "vllm.executor", "vllm.lora.request", "vllm.model_executor", "vllm.model_executor.model_loader",
    "vllm.model_executor.model_loader.utils", "vllm.outputs", "vllm.sampling_params", "vllm.sequence", "vllm.utils",
    "vllm.worker.worker", "verl", "verl.protocol", "verl.utils", "verl.trainer.ppo.core_algos",
    "verl.trainer.ppo.ray_trainer", "megatron.core", "megatron.core.parallel_state", "megatron.core.utils",
    "megatron.core.distributed", "megatron.core.distributed.finalize_model_grads", "megatron.core.optimizer",
    "megatron.core.transformer.transformer_config", "megatron.core.transformer.moe.moe_utils",
    "megatron.core.transformer.moe.experts", "megatron.core.transformer.moe.router", "megatron.core.fp8_utils",
    "megatron.core.models.gpt.gpt_layer_specs", "megatron.core.extensions.transformer_engine",
    "megatron.core.pipeline_parallel", "megatron.core.tensor_parallel", "megatron.core.transformer.enums",
    "megatron.core.transformer.multi_token_prediction", "megatron.core.dist_checkpointing",
    "megatron.core.dist_checkpointing.mapping", "megatron.core.transformer.utils",
    "megatron.core.ssm.mamba_hybrid_layer_allocation", "sglang.srt.server_args",
    "sglang.srt.managers.io_struct", "sglang.srt.entrypoints.engine", "sglang.srt.entrypoints.http_server",
    "sglang.srt.weight_sync.utils", "sglang.srt.weight_sync.tensor_bucket",
    "sglang.srt.model_executor.model_runner",
}  # fmt: skip
"""Those whose classes and functions are in the table; of all others only that they are there."""
PART_OF_A_MODEL = re.compile(
    r"transformers\.(?!Auto)\w+(Backbone|FeatureExtractor|Image\w+|Layer|OnnxConfig|Output\w*|Pipeline|PreTrainedModel"
    r"|TextConfig|TextModel|TokenizerFast|VideoProcessor|VisionConfig|VisionModel|For(?!CausalLM|Conditional)\w+)$"
)
"""Classes of models that nobody imports by name."""
RENAMED = {
    "max_seq_length": "max_length", "evaluation_strategy": "eval_strategy", "tokenizer": "processing_class",
    "AutoModelForVision2Seq": "AutoModelForImageTextToText", "GuidedDecodingParams": "StructuredOutputsParams",
    "get_max_length": "get_max_cache_shape", "no_cuda": "use_cpu", "guided_decoding": "structured_outputs",
}  # fmt: skip


class Names(NamedTuple):
    """What a release has, and what its modules import: that counts where another release defines it there."""

    own: set[str]
    imported: set[str]


@dataclass
class Class:
    bases: list[str]
    parameters: dict[str, list[str]] = field(default_factory=dict)
    fields: list[str] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)


class Package:
    """The names of one release."""

    def __init__(self, name: str) -> None:
        self.name, self.root, self.classes = name, name.partition("-")[0], dict[str, Class]()
        self.names, self.imported = set[str](), set[str]()

    def add(self, path: str, source: bytes) -> None:
        parts = PurePosixPath(path).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if parts[0] != self.root or re.search(r"(^|\.)(_|tests?\b)", module):
            return
        if self.name == "transformers" and module.startswith("transformers.models."):
            lists = re.findall(rb"^__all__ = (\[[^\]]*\])", source, re.MULTILINE)
            exported = [name for text in lists for name in ast.literal_eval(text.decode())]
            self.names |= {f"transformers.{name}" for name in exported if not re.match("TF|Flax", name)}
            self.names |= {f"transformers.models.{parts[2]}"}
        self.add_fields_of_server_args(module, source)
        if re.match(INTERNAL[self.name], module):
            if self.name != "transformers" and not re.search(r"\.(models|layers|ops)\.", module):
                self.names.add(module)
            return
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return
        self.names.add(module)
        is_package = parts[-1] == "__init__"
        for name in (*defined(tree, imported=is_package), *listed(tree)):
            self.names |= {f"{module}.{name}"} if not re.match("(TF|Flax)[A-Z]", name) else set()
        self.imported |= {f"{module}.{name}" for name in defined(tree, imported=True)} if not is_package else set()
        for node in statements(tree.body):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                self.classes.setdefault(node.name, read_class(node))
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                self.names |= {f"{node.name}(", *(f"{node.name}({one}" for one in parameters(node))}

    def add_fields_of_server_args(self, module: str, source: bytes) -> None:
        """Add the fields of classes of which sglang 0.5.20 builds its ServerArgs."""
        if not module.startswith("sglang.srt.arg_groups.fields."):
            return
        fields = self.classes.setdefault("ServerArgs-fields", Class([])).fields
        for node in ast.parse(source).body:
            fields += read_class(node).fields if isinstance(node, ast.ClassDef) else []

    def finish(self) -> set[str]:
        if "ServerArgs-fields" in self.classes:
            self.classes["ServerArgs"].bases.append("ServerArgs-fields")
        for name, own in self.classes.items():
            family = list(self.family(name))
            constructor = next((one.parameters["__init__"] for one in family if "__init__" in one.parameters), None)
            arguments = constructor or [one for relative in family for one in relative.fields]
            self.names |= {f"{name}.__init__(", *(f"{name}.__init__({one}" for one in arguments)}
            for method, known in own.parameters.items():
                if not method.startswith("_"):
                    self.names |= {f"{name}.{method}(", *(f"{name}.{method}({one}" for one in known)}
            attributes = {one for relative in family for one in (*relative.attributes, *relative.parameters)}
            attributes |= {one for relative in family for one in relative.fields}
            if f"{self.root}.{name}" in self.names:
                self.names |= {f"{name}#", *(f"{name}#{one}" for one in attributes if not one.startswith("_"))}
        return self.names

    def family(self, name: str, depth: int = 0) -> Iterator[Class]:
        if depth < 9 and (own := self.classes.get(name)):
            yield own
            for base in own.bases:
                yield from self.family(base, depth + 1)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those below `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from statements([*node.body, *node.orelse])
            for handler in getattr(node, "handlers", ()):
                yield from statements(handler.body)


def defined(tree: ast.Module, *, imported: bool) -> Iterator[str]:
    """Yield what a module defines, and what it imports from other modules."""
    for node in statements(tree.body):
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.ImportFrom) and imported:
            names = [one.asname or one.name for one in node.names]
        elif isinstance(node, ast.Assign):
            names = [one.id for one in node.targets if isinstance(one, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from (name for name in names if not name.startswith("_") and name not in ("logger", "annotations", "*"))


def listed(tree: ast.Module) -> Iterator[str]:
    """Yield the names in `__all__`, `_import_structure` and `__getattr__`'s table, from which modules load lazily."""
    for node in statements(tree.body):
        text = ast.unparse(node)[:60] if isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr) else ""
        if re.match(r"__all__|_import_structure|MODULE_ATTRS", text):
            words = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            yield from (
                word.lstrip(".:") for word in words if isinstance(word, str) and re.fullmatch(r"[A-Za-z]\w+", word)
            )


def parameters(node: ast.FunctionDef) -> list[str]:
    """Return what a function accepts, old names by `@deprecate_kwarg` included."""
    every = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "deprecate_kwarg" and mark.args:
            every.append(str(ast.literal_eval(mark.args[0])))
    return [one for one in every if one not in ("self", "cls") and not one.startswith("_")]


def read_class(node: ast.ClassDef) -> Class:
    own = Class([ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases])
    for one in node.body:
        if isinstance(one, ast.FunctionDef):
            own.parameters[one.name] = parameters(one)
            own.attributes |= {
                target.attr
                for target in ast.walk(one)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and ast.unparse(target.value) == "self"
            }
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            own.fields.append(one.target.id)
        elif isinstance(one, ast.Assign):
            own.attributes |= {target.id for target in one.targets if isinstance(target, ast.Name)}
    return own


def list_releases(package: str) -> list[str]:
    command = ("pip", "index", "versions", package, "--only-binary=:all:")
    found = set[Version]()
    for python in PYTHONS:
        words = (*command, f"--python-version={python}")
        text = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
        found |= {Version(one) for one in re.findall(r"\d[\w.]+", text.split("versions:")[1].split("\n")[0])}
    first: dict[tuple[int, ...], Version] = {}
    for version in sorted(found):
        if version >= Version(OLDEST[package]):
            first.setdefault((*version.release, 0)[: PARTS.get(package, 2)], version)
    return [str(one) for one in first.values()]


def read_release(package: str, version: str, folder: Path) -> Names:
    kept = folder / f"{package}-{version}.json"
    if not kept.exists():
        command = (*PIP, f"{package}=={version}", *(f"--platform={one}" for one in PLATFORMS), "-d", str(folder))
        newer, older = ((*command, f"--python-version={python}") for python in PYTHONS)
        if subprocess.run(newer).returncode:
            subprocess.run(older, check=True)
        wheel = next(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
        release = Package(package)
        with zipfile.ZipFile(wheel) as archive:
            for path in archive.namelist():
                if path.endswith(".py"):
                    release.add(path, archive.read(path))
        kept.write_text(json.dumps([sorted(release.finish()), sorted(release.imported)]))
        wheel.unlink()
    return Names(*map(set, json.loads(kept.read_text())))


def container(name: str) -> str:
    """Return what a name is of: for `trl.core.X` the module `trl.core`, for `get(x` the function `get(`."""
    if mark := re.match(r".*[(#](?=.)", name):
        return mark.group()
    return name.rpartition(".")[0]


def find_spans(releases: Sequence[Names]) -> dict[str, tuple[int, ...]]:
    owned = set().union(*(release.own for release in releases))
    spans: dict[str, tuple[int, ...]] = {}
    for index, release in enumerate(releases):
        for name in release.own | (release.imported & owned):
            spans[name] = (*spans.get(name, ()), index)
    return spans


def is_in_table(name: str, modules: Collection[str]) -> bool:
    if name in modules:
        return name.count(".") <= 3
    owner, last = re.findall(r"(.+)[(#.](\w+)$", name)[0]
    if "#" in name:
        return owner in OBJECTS and not last.startswith("_")
    if "(" in name:
        return owner.partition(".")[0] in CLASSES and not last.startswith("_")
    return owner in MODULES and not re.match("_|TF|Flax", last) and not PART_OF_A_MODEL.match(name)


def group_names(releases: Sequence[Names]) -> str:
    """Return names that only some releases have: a line a parent, `PARENT FIRST:LAST:NAME,NAME …`, of indexes."""
    spans = find_spans(releases)
    modules = {container(name) for name in spans if not re.search(r"[(#]", name)}
    families = {name for name in spans if re.fullmatch(r"transformers\.models\.\w+", name)}
    parents: dict[str, dict[str, list[str]]] = {}
    for name, span in sorted(spans.items()):
        run = span[: next((at for at in range(1, len(span)) if span[at] > span[at - 1] + 1), len(span))]
        argument = name.replace("#", ".__init__(")
        owners = {container(name), find_transformers_model_module_or_empty(name, families), argument} - {name}
        is_implied = any(spans.get(owner) == span for owner in owners) or ("#" in name and argument in spans)
        if len(run) < len(releases) and not is_implied and name[-1] not in "(#" and is_in_table(name, modules):
            parent = container(name) + ("" if re.search("[(#]", name) else ".")
            ends = f"{run[0]}:{run[-1]}"
            parents.setdefault(parent, {}).setdefault(ends, []).append(name[len(parent) :])
    groups = {
        parent: " ".join(f"{ends}:{','.join(own)}" for ends, own in rows.items()) for parent, rows in parents.items()
    }
    return "\n".join(f"{parent} {text}" for parent, text in groups.items())


def main() -> None:
    folder, *named = sys.argv[1:]
    packages = json.loads(lzma.decompress(OUT.read_bytes())) | {"renamed": RENAMED}
    for package in named or OLDEST:
        versions = list_releases(package)
        names = group_names([read_release(package, version, Path(folder)) for version in versions])
        packages[package] = {"releases": versions, "names": names, "parts": PARTS.get(package, 2)}
    OUT.write_bytes(lzma.compress(json.dumps(packages, indent=0).encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
