"""`openrlhf.cli.train_ppo_ray` of OpenRLHF 0.10.2 and newer, with the options of the seed: each gets its dotted name.

Three have no name of their own any more: the longest prompt and answer are one length of both, `--bf16` is a choice,
and without `--flash_attn` attention is torch's own. The engine's log-probabilities are asked for, too: OpenRLHF tells
`vllm_kl` then, by which a weight that did not arrive is seen, and bounds each token's weight in the loss by the ratio.
Source: OpenRLHF v0.10.4 openrlhf/cli/train_ppo_ray.py, models/loss.py.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

TRAINER = "openrlhf.cli.train_ppo_ray"
GAP = ("--algo.advantage.is_correction_enable",)
DOTTED = {
    "--ref_num_nodes": "--ref.num_nodes",
    "--ref_num_gpus_per_node": "--ref.num_gpus_per_node",
    "--remote_rm_url": "--reward.remote_url",
    "--actor_num_nodes": "--actor.num_nodes",
    "--actor_num_gpus_per_node": "--actor.num_gpus_per_node",
    "--vllm_num_engines": "--vllm.num_engines",
    "--vllm_tensor_parallel_size": "--vllm.tensor_parallel_size",
    "--colocate_all_models": "--train.colocate_all",
    "--vllm_enable_sleep": "--vllm.enable_sleep",
    "--vllm_gpu_memory_utilization": "--vllm.gpu_memory_utilization",
    "--vllm_sync_backend": "--vllm.sync_backend",
    "--enable_prefix_caching": "--vllm.enable_prefix_caching",
    "--enforce_eager": "--vllm.enforce_eager",
    "--pretrain": "--actor.model_name_or_path",
    "--save_path": "--ckpt.output_dir",
    "--micro_train_batch_size": "--train.micro_batch_size",
    "--train_batch_size": "--train.batch_size",
    "--micro_rollout_batch_size": "--rollout.micro_batch_size",
    "--rollout_batch_size": "--rollout.batch_size",
    "--temperature": "--rollout.temperature",
    "--n_samples_per_prompt": "--rollout.n_samples_per_prompt",
    "--max_epochs": "--train.max_epochs",
    "--num_episodes": "--train.num_episodes",
    "--max_samples": "--data.max_samples",
    "--advantage_estimator": "--algo.advantage.estimator",
    "--zero_stage": "--ds.zero_stage",
    "--adam_offload": "--ds.adam_offload",
    "--actor_learning_rate": "--actor.adam.lr",
    "--init_kl_coef": "--algo.kl.init_coef",
    "--prompt_data": "--data.prompt_dataset",
    "--input_key": "--data.input_key",
    "--label_key": "--data.label_key",
    "--normalize_reward": "--reward.normalize_enable",
    "--gradient_checkpointing": "--actor.gradient_checkpointing_enable",
    "--save_steps": "--ckpt.save_steps",
    "--ckpt_path": "--ckpt.path",
    "--max_ckpt_num": "--ckpt.max_num",
    "--save_hf_ckpt": "--ckpt.save_hf",
    "--load_checkpoint": "--ckpt.load_enable",
}


def dotted(words: Sequence[str]) -> list[str]:
    """Return the seed's options as the newer OpenRLHF takes them; an option that is not known stays as it is.

    Raises
    ------
    ValueError
        `--prompt_max_len` or `--generate_max_len` has no number.
    """
    found, lengths, attention = list[str](), dict[str, int](), "sdpa"
    rest = iter(words)
    for word in rest:
        if word == "--flash_attn":
            attention = "flash_attention_2"
        elif word == "--bf16":
            found += ("--ds.param_dtype", "bf16")
        elif word in ("--prompt_max_len", "--generate_max_len"):
            lengths[word] = int(next(rest, ""))
        else:
            found.append(DOTTED.get(word, word))
    if answer := lengths.get("--generate_max_len"):
        found += ("--rollout.max_new_tokens", str(answer))
    if lengths:
        found += ("--data.max_len", str(sum(lengths.values())))
    return [*found, "--ds.attn_implementation", attention, *GAP]


def main() -> None:
    """Run the trainer as `python -m` would."""
    sys.argv[1:] = dotted(sys.argv[1:])
    runpy.run_module(TRAINER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
