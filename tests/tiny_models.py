"""Tiny random models and tokenizers of their own, one per family's way of doing things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

SENTENCES = [
    "You are a chef. You are a lawyer. You are an elderly person from a village.",
    "What is the capital of France? (A) Paris (B) Rome (C) Berlin (D) Madrid",
    "Answer with the letter of the correct option only. Reason step by step.",
    "The answer is (B), since the other options are wrong. ANSWER: C",
    "What does {question} mean, and {{ why }}? system user assistant model",
]

CHATML = (
    "{% if messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% if not date_string is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "<|start|>system<|end_header|>\n\nToday Date: {{ date_string }}\n\n"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}"
    "{% set messages = messages[1:] %}{% endif %}<|eot|>"
    "{% for m in messages %}<|start|>{{ m['role'] }}<|end_header|>\n\n"
    "{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end_header|>\n\n{% endif %}"
)
# The date as other families write it: with no variable of their own in between.
DATED = "{{ strftime_now('%Y-%m-%d') }}\n" + CHATML
# Like Mistral's, but the system message goes nowhere.
DROPPING = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<|start|>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<|eot|>\n{% endfor %}{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)
THINKING = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n<think>\n{% endif %}"
)
BROKEN = "{% for m in messages %}<|start|>{{ m['role'] }}<|eot|>{% endfor %}"

TEMPLATES: dict[str, str | None] = {
    "chatml": CHATML,
    "llama": LLAMA,
    "dated": DATED,
    "dropping": DROPPING,
    "gemma": GEMMA,
    "thinking": THINKING,
    "broken": BROKEN,
    "base": None,
}
SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end_header|>", "<|eot|>"]


def build_tokenizer(style: str = "chatml", *, adds_bos: bool | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the chat template of this style.

    Args:
        style: Key of `TEMPLATES`.
        adds_bos: Whether it puts BOS before a plain text; by default all but ChatML do.
    """
    from tokenizers.processors import TemplateProcessing

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    chatml = style in ("chatml", "dated")
    if adds_bos if adds_bos is not None else not chatml:
        backend.post_processor = TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="<|im_end|>" if chatml else "</s>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>", "<|start|>", "<|end_header|>", "<|eot|>"],
    )
    if TEMPLATES[style] is not None:
        tokenizer.chat_template = TEMPLATES[style]
    return tokenizer


FAMILIES: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "llama": (LlamaConfig, {}, "llama"),
    "qwen2": (Qwen2Config, {}, "chatml"),
    # The windows are shorter than a prompt, so that they matter.
    "mistral": (MistralConfig, {"sliding_window": 24}, "dropping"),
    "gemma2": (Gemma2Config, {"sliding_window": 24, "head_dim": 8, "query_pre_attn_scalar": 8}, "gemma"),
    # A convolution's state beside keys and values, which rows cannot join.
    "lfm2": (
        Lfm2Config,
        {"layer_types": ["conv", "full_attention"], "block_ff_dim": 64, "block_auto_adjust_ff_dim": False},
        "chatml",
    ),
    # Alibi: no position ids.
    "bloom": (BloomConfig, {"n_head": 4, "n_layer": 2}, "chatml"),
    "gemma3": (
        Gemma3TextConfig,
        {
            "sliding_window": 24,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "gemma",
    ),
}


def build_model(
    family: str = "llama", *, seed: int = 0, context: int = 512, **overrides: Any
) -> PreTrainedModel:
    """A random model of two layers whose answers depend on all of the prompt.

    Args:
        family: Key of `FAMILIES`.
        seed: Seed of its weights.
        context: Its ``max_position_embeddings``.
        **overrides: Further arguments of its configuration.
    """
    config_type, extra, style = FAMILIES[family]
    tokenizer = build_tokenizer(style)
    arguments: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        # Far above the usual 0.02, with which a random model repeats itself whatever it is asked.
        "initializer_range": 0.3,
        # Tied, a random model mostly says its last token again.
        "tie_word_embeddings": False,
    }
    config = config_type(**{**arguments, **extra, **overrides})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert isinstance(model, PreTrainedModel)
    return model.eval()


def build(family: str = "llama", **overrides: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A family's tiny model with its tokenizer."""
    return build_model(family, **overrides), build_tokenizer(FAMILIES[family][2])


def write_gguf(path: Path, *, seed: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Write a tiny Llama to a GGUF file (float32), as llama.cpp's converter lays it out.

    Returns:
        The model that it holds, to compare with, and its tokenizer.
    """
    import json

    import gguf

    model, tokenizer = build_model("llama", seed=seed), build_tokenizer("chatml")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    words = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if word in SPECIAL else normal for word in words])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]])
    writer.add_bos_token_id(int(tokenizer.bos_token_id))
    writer.add_eos_token_id(int(tokenizer.eos_token_id))
    writer.add_chat_template(CHATML)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        stem = name.removesuffix(".weight")
        array = tensor.numpy()
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            short = names[part]
            if short in heads:  # llama.cpp keeps the two halves of a rotary pair side by side
                array = array.reshape(heads[short], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            target = f"blk.{layer}.{short}.weight"
        else:
            target = f"{names[stem]}.weight"
        writer.add_tensor(target, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, tokenizer
