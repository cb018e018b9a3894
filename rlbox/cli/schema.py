"""JSON Schema of the files a user writes, for editors that complete and check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from rlbox.artifacts.profile import Profile
from rlbox.config.toml_files import load_toml
from rlbox.fixes.fix import TEXT_KEYS, Fix
from rlbox.job.job import Job
from rlbox.target.target import DEFAULTS, Target

SpecKind = Literal["target", "job", "profile", "fix"]


def create_json_schema(spec_kind: SpecKind) -> dict[str, Any]:
    """Return the JSON Schema of `target.toml` ("target"), of a job file, a sources profile or a fix.

    Keys that the shipped defaults fill, and the name, which is the file's own, are not required; a target that
    includes another need not repeat any key.
    """
    models: dict[SpecKind, type[BaseModel]] = {"target": Target, "job": Job, "profile": Profile, "fix": Fix}
    schema = models[spec_kind].model_json_schema()
    own = "id" if spec_kind == "fix" else "name"
    _optional(schema, own)
    schema["properties"].pop(own)
    schema["patternProperties"] = {"^x-": {"description": "your own keys; rlbox ignores them"}}
    if spec_kind == "profile":
        schema["properties"]["include"] = {"type": "string", "description": "profile whose rules are tried after these"}
    if spec_kind == "fix":  # one language is enough
        for key in TEXT_KEYS:
            _optional(schema, key)
        schema["allOf"] = [{"anyOf": [{"required": [key]}, {"required": [f"{key}_zh"]}]} for key in TEXT_KEYS]
    if spec_kind == "target":
        schema["properties"]["include"] = {
            "type": "string",
            "description": "target to start from; keys here override its keys",
        }
        _fill_defaults(schema, schema, load_toml(DEFAULTS))
        schema["anyOf"] = [{"required": ["include"]}, {"required": schema.pop("required")}]
    return schema


def _fill_defaults(schema: dict[str, Any], node: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for key, value in defaults.items():
        _optional(node, key)
        below = node["properties"][key]
        if isinstance(value, Mapping) and "$ref" in below:
            _fill_defaults(schema, schema["$defs"][below["$ref"].rsplit("/", 1)[1]], value)
        else:
            below["default"] = value


def _optional(node: dict[str, Any], key: str) -> None:
    if key in node.get("required", ()):
        node["required"].remove(key)
