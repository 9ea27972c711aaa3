"""Tiny Gemma 3 as a GGUF file, cut into parts, inside packages that look installed."""

from __future__ import annotations

import hashlib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import gguf
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
LETTERS = ["▁", *"abcdefghijklmnopqrstuvwxyz", "ab", "abc"]
VOCABULARY = [*WORDS, *LETTERS]

TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


class Package(Distribution):
    """An installed package with these files in ``root``."""

    def __init__(self, name: str, root: Path, names: list[str]) -> None:
        self.package = name
        self.root = root
        self.names = names

    def read_text(self, filename: str) -> str | None:
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {self.package}\nVersion: 0\n",
            "RECORD": "".join(f"{name},,{self.size(name)}\n" for name in self.names),
        }
        return texts.get(filename)

    def size(self, name: str) -> int:
        path = self.root / name
        return path.stat().st_size if path.is_file() else 0

    def locate_file(self, path: object) -> Path:
        return self.root / str(path)


class Installed(dict[str, Package]):
    """Packages by name; called as ``importlib.metadata.distribution`` is."""

    def __call__(self, name: str) -> Package:
        if name not in self:
            raise PackageNotFoundError(name)
        return self[name]


def tiny_gemma3() -> Gemma3ForCausalLM:
    """Two layers, every parameter random; the gains as stored have mean 0.3, not 0."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        max_position_embeddings=64,
        rms_norm_eps=3e-4,
        query_pre_attn_scalar=256,
    )
    model = Gemma3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(0.3 if "norm" in name else 0.0, 0.4)
    return model


def write_gguf(model: Gemma3ForCausalLM, path: Path) -> None:
    """As llama.cpp stores it: gains with 1 added, the vocabulary with scores and types."""
    config = model.config
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(VOCABULARY)
    writer.add_token_scores([-float(rank) for rank in range(len(VOCABULARY))])
    writer.add_token_types([3] * 5 + [6] * 256 + [1] * len(LETTERS))
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    for name, value in model.named_parameters():
        stored = value.detach() + 1 if "norm" in name else value.detach()
        writer.add_tensor(_gguf_name(name), stored.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packages_of(gguf_file: Path, parts: tuple[str, ...], main: str) -> Installed:
    """The file cut into ``parts``, one package each, and the package ``main`` with its digest."""
    content = gguf_file.read_bytes()
    root = gguf_file.parent
    size = -(-len(content) // len(parts))
    installed = Installed()
    for rank, part in enumerate(parts):
        name = f"model.gguf.part{rank:02d}"
        (root / name).write_bytes(content[rank * size : (rank + 1) * size])
        installed[part] = Package(part, root, [name])
    digest = hashlib.sha256(content).hexdigest()
    (root / "SHA256SUMS").write_text(f"{digest}  model.gguf\n")
    installed[main] = Package(main, root, ["SHA256SUMS"])
    return installed


def _gguf_name(name: str) -> str:
    stem, _, _ = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{TENSORS[stem]}.weight"
    _, _, layer, inside = stem.split(".", 3)
    return f"blk.{layer}.{TENSORS[inside]}.weight"
