"""The model of Megatron's own layers for slime, where Transformer Engine is not there: `--custom-model-provider-path`.

slime packs the sequences of a batch into one (layout `thd`), which Megatron's local attention does not take, and reads
and writes weights under the names of Transformer Engine's fused layers. Here both are Megatron's parallel layers and
torch: the norm lies in the linear layer behind it, as it is called there, and attention is torch's kernel for packed
sequences. Source: slime v0.3.1 `backends/megatron_utils/{data,model_provider}.py`, `hf_to_megatron/qwen.py`,
`megatron_to_hf/qwen2.py`; Megatron-LM 1dcf0da `core/models/gpt/gpt_layer_specs.py`,
`core/transformer/dot_product_attention.py` (packed: refused).
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from megatron.training import get_args
from megatron.training.arguments import core_transformer_config_from_args

FUSED = ("gradient_accumulation_fusion", "apply_rope_fusion", "masked_softmax_fusion", "bias_swiglu_fusion")


class NormedColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """RMSNorm, then the column-parallel product; the norm's weight has Transformer Engine's name for it."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **named: Any) -> None:
        super().__init__(input_size, output_size, config=config, **named)
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        ones = torch.ones(input_size, dtype=config.params_dtype, device=device)
        self.layer_norm_weight = torch.nn.Parameter(ones)
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel

    def forward(self, input_: torch.Tensor, *words: Any, **named: Any) -> Any:
        """Return what the linear layer returns for the normed input."""
        normed = torch.nn.functional.rms_norm(
            input_, self.layer_norm_weight.shape, self.layer_norm_weight, self.config.layernorm_epsilon
        )
        return super().forward(normed, *words, **named)


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention within each of the sequences that are packed into one, by torch's own kernel."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(
        self, query: Any, key: Any, value: Any, *_: Any, packed_seq_params: Any = None, **__: Any
    ) -> torch.Tensor:
        """Return attention's output; tokens x heads x head size in and out."""
        if packed_seq_params is None or packed_seq_params.qkv_format != "thd":
            raise ValueError("packed sequences alone: slime hands over qkv_format thd")
        ends = packed_seq_params.cu_seqlens_q.to(torch.int32)
        if not query.is_cuda:
            return _one_by_one(query, key, value, ends.tolist(), self.scale)
        from torch.nn.attention.varlen import varlen_attn

        repeat = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        longest = int(packed_seq_params.max_seqlen_q)
        found: torch.Tensor = varlen_attn(
            query.contiguous(), key, value, ends, ends, longest, longest, scale=self.scale, window_size=(-1, 0)
        )
        return found


def _one_by_one(query: Any, key: Any, value: Any, ends: list[int], scale: float | None) -> torch.Tensor:
    """Return the same on a CPU, for which torch has no such kernel."""
    found = []
    for begin, end in itertools.pairwise(ends):
        q, k, v = (part[begin:end].transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        found.append(out.squeeze(0).transpose(0, 1))
    return torch.cat(found)


def layer(args: Any) -> ModuleSpec:
    """Return the specification of one layer."""
    norm = WrappedTorchNorm if args.qk_layernorm else IdentityOp
    attention = SelfAttentionSubmodules(
        linear_qkv=NormedColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=RowParallelLinear,
        q_layernorm=norm,
        k_layernorm=norm,
    )
    mlp = MLPSubmodules(linear_fc1=NormedColumnParallelLinear, linear_fc2=RowParallelLinear)
    mask = {"attn_mask_type": AttnMaskType.causal}
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            self_attention=ModuleSpec(module=SelfAttention, params=mask, submodules=attention),
            self_attn_bda=get_bias_dropout_add,
            mlp=ModuleSpec(module=MLP, submodules=mlp),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def provider(pre_process: bool = True, post_process: bool = True, vp_stage: int | None = None) -> GPTModel:
    """Return the model that slime trains; every fused kernel that wants Transformer Engine or Apex is off.

    So is the sharing of a sequence between the GPUs that share layers, which Megatron's norm of torch refuses.
    """
    args = get_args()
    args.sequence_parallel = False
    for fused in FUSED:
        setattr(args, fused, False)
    args.no_persist_layer_norm = True
    config = core_transformer_config_from_args(args)
    return GPTModel(
        config=config,
        transformer_layer_spec=_block(config, layer(args)),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        fp16_lm_cross_entropy=args.fp16_lm_cross_entropy,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        vp_stage=vp_stage,
    )


def _block(config: Any, spec: ModuleSpec) -> Any:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

    return TransformerBlockSubmodules(layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=WrappedTorchNorm)
