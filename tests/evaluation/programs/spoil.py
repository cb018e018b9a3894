"""Run by an interpreter with torch: change one thing of an export, argv: folder, fault."""

import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

FOLDER, FAULT = Path(sys.argv[1]), sys.argv[2]
INDEX = FOLDER / "model.safetensors.index.json"
NAME, TWIN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"


def files():
    return json.loads(INDEX.read_text())["weight_map"] if INDEX.is_file() else {}


def path_of(name):
    return FOLDER / files().get(name, "model.safetensors")


def change(name, how):
    path = path_of(name)
    with safe_open(path, "pt") as found:
        state = {key: found.get_tensor(key) for key in found.keys()}  # noqa: SIM118 - it is no mapping
    state[name] = how(state[name])
    if state[name] is None:
        del state[name]
    save_file(state, path, {"format": "pt"})


def get(name):
    with safe_open(path_of(name), "pt") as found:
        return found.get_tensor(name)


def last_bit(tensor):
    bits = tensor.clone().view(torch.int16 if tensor.element_size() == 2 else torch.int32)
    bits.view(-1)[-1] ^= 1
    return bits.view(tensor.dtype)


def swap():
    one, other = get(NAME), get(TWIN)
    change(NAME, lambda _: other)
    change(TWIN, lambda _: one)


def stale_shard():
    first = sorted(set(files().values()))[0]
    (FOLDER / "model-00009-of-00009.safetensors").write_bytes((FOLDER / first).read_bytes())


def index_names_another():
    told = json.loads(INDEX.read_text())
    told["weight_map"][NAME] = next(name for name in told["weight_map"].values() if name != told["weight_map"][NAME])
    INDEX.write_text(json.dumps(told))


def edit(name, how):
    path = FOLDER / name
    found = json.loads(path.read_text())
    how(found)
    path.write_text(json.dumps(found))


def two_words(found):
    words = found["model"]["vocab"]
    words["the"], words["a"] = words["a"], words["the"]


def torn():
    path = path_of(NAME)
    path.write_bytes(path.read_bytes()[:-5])


FAULTS = {
    "swapped": swap,
    "a bit": lambda: change(NAME, last_bit),
    "transposed": lambda: change(NAME, lambda one: one.T.contiguous()),
    "negative zero": lambda: change(NAME, lambda one: -torch.zeros_like(one)),
    "another type": lambda: change(NAME, lambda one: one.to(torch.float16)),
    "another shape": lambda: change(NAME, lambda one: one[:-1].contiguous()),
    "missing": lambda: change(NAME, lambda one: None),
    "a stale shard": stale_shard,
    "stale weights beside": lambda: torch.save({NAME: torch.zeros(2)}, FOLDER / "pytorch_model.bin"),
    "a stale index": index_names_another,
    "torn": torn,
    "vocabulary": lambda: edit("tokenizer.json", two_words),
    "merges": lambda: edit("tokenizer.json", lambda found: found["model"]["merges"].reverse()),
    "added token": lambda: edit("tokenizer.json", lambda found: found["added_tokens"].pop()),
    "pre_tokenizer": lambda: edit("tokenizer.json", lambda found: found["pre_tokenizer"].update(add_prefix_space=True)),
    "eos": lambda: edit("tokenizer_config.json", lambda found: found.update(eos_token="<pad>")),
    "template": lambda: (FOLDER / "chat_template.jinja").write_text("{{ messages }}"),
    "configuration": lambda: edit("config.json", lambda found: found.update(rms_norm_eps=0.5)),
    "nothing": lambda: None,
}
FAULTS[FAULT]()
