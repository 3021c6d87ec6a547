#!/usr/bin/python3
"""Logits of Hugging Face files by PyTorch, as a second opinion on Ebb's.

  huggingface_logits.py DIR TOKEN...   prints the logits of every position, one
                                       line a token: for directories that
                                       `ebb export` wrote
  huggingface_logits.py --golden       rewrites huggingface_logits_*.txt beside
                                       this script: logits of crafted weights

The model is written out below in plain PyTorch from the published descriptions
(Radford et al. 2019; Touvron et al. 2023), so that nothing but PyTorch is
needed (Debian: python3-torch). Files are read here, too: 8 bytes of length, a
JSON header, the tensors.

Crafted weights depend on the tensor's name and the element's index alone, and
worker/runtime/huggingface_logits_test.cc makes the same ones: element i of a
tensor is 0.5 (u - 0.5), u = mix(fnv1a(name) + i) / 2^24 of the top 24 bits, and
1 more where the name is a norm's weight. Token t is (7 t + 3) mod vocab.
"""
import json
import math
import os
import sys

import torch
import torch.nn.functional as F

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

GOLDENS = {
    "gpt2": {
        "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4,
        "n_positions": 16, "n_inner": 48, "vocab_size": 61,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
    "llama": {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 16,
        "vocab_size": 61, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_act": "silu", "tie_word_embeddings": False,
    },
}
NUM_TOKENS = 16


def read_safetensors(path):
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]],
                                offset=entry["data_offsets"][0],
                                count=math.prod(entry["shape"]))
        tensors[name] = flat.reshape(entry["shape"]).float()
    return tensors


def read_directory(directory):
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return config, read_safetensors(
            os.path.join(directory, "model.safetensors"))
    with open(index) as file:
        weight_map = json.load(file)["weight_map"]
    files = {name: read_safetensors(os.path.join(directory, name))
             for name in set(weight_map.values())}
    return config, {name: files[shard][name]
                    for name, shard in weight_map.items()}


def attention(q, k, v, heads, kv_heads):
    """Causal attention of [T, heads * W], [T, kv_heads * W] twice."""
    length = q.shape[0]
    q = q.reshape(length, heads, -1).transpose(0, 1)
    k = k.reshape(length, kv_heads, -1).transpose(0, 1)
    v = v.reshape(length, kv_heads, -1).transpose(0, 1)
    k = k.repeat_interleave(heads // kv_heads, 0)
    v = v.repeat_interleave(heads // kv_heads, 0)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(mask, -math.inf).softmax(-1)
    return (weights @ v).transpose(0, 1).reshape(length, -1)


def tanh_gelu(x):
    return F.gelu(x, approximate="tanh")


def gpt2(config, w, tokens):
    w = {name.replace("transformer.", ""): value for name, value in w.items()}
    width, heads = config["n_embd"], config["n_head"]
    eps = config["layer_norm_epsilon"]
    activation = {"relu": F.relu, "gelu_new": tanh_gelu,
                  "gelu_pytorch_tanh": tanh_gelu}[config["activation_function"]]

    def norm(x, name):
        return F.layer_norm(x, (width,), w[name + ".weight"],
                            w[name + ".bias"], eps)

    def linear(x, name):  # stored [in, out]
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:len(tokens)]
    for layer in range(config["n_layer"]):
        h = f"h.{layer}."
        q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(width, 1)
        x = x + linear(attention(q, k, v, heads, heads), h + "attn.c_proj")
        y = activation(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"))
        x = x + linear(y, h + "mlp.c_proj")
    tied = config.get("tie_word_embeddings", True)
    head = w["wte.weight"] if tied else w["lm_head.weight"]
    return norm(x, "ln_f") @ head.T


def llama(config, w, tokens):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_width = config["hidden_size"] // heads
    eps = config["rms_norm_eps"]

    def norm(x, name):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return x * scale * w[name + ".weight"]

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    pairs = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
    angles = torch.outer(torch.arange(len(tokens), dtype=torch.float64),
                         config.get("rope_theta", 10000.0) ** -pairs)
    cos = torch.cat([angles.cos()] * 2, -1).float()[:, None, :]
    sin = torch.cat([angles.sin()] * 2, -1).float()[:, None, :]

    def rope(x):
        x = x.reshape(len(tokens), -1, head_width)
        left, right = x.chunk(2, -1)
        turned = x * cos + torch.cat([-right, left], -1) * sin
        return turned.reshape(len(tokens), -1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        h = f"model.layers.{layer}."
        y = norm(x, h + "input_layernorm")
        y = attention(rope(linear(y, h + "self_attn.q_proj")),
                      rope(linear(y, h + "self_attn.k_proj")),
                      linear(y, h + "self_attn.v_proj"), heads, kv_heads)
        x = x + linear(y, h + "self_attn.o_proj")
        y = norm(x, h + "post_attention_layernorm")
        y = F.silu(linear(y, h + "mlp.gate_proj")) * linear(y, h + "mlp.up_proj")
        x = x + linear(y, h + "mlp.down_proj")
    tied = config.get("tie_word_embeddings", False)
    head = w["model.embed_tokens.weight"] if tied else w["lm_head.weight"]
    return norm(x, "model.norm") @ head.T


def logits(config, tensors, tokens):
    model = {"gpt2": gpt2, "llama": llama}[config["model_type"]]
    return model(config, tensors, torch.tensor(tokens))


def shapes(config):
    """Names and shapes of a golden model's tensors."""
    if config["model_type"] == "gpt2":
        d, f, v = config["n_embd"], config["n_inner"], config["vocab_size"]
        yield "transformer.wte.weight", (v, d)
        yield "transformer.wpe.weight", (config["n_positions"], d)
        for layer in range(config["n_layer"]):
            h = f"transformer.h.{layer}."
            for name, size in (("attn.c_attn", (d, 3 * d)),
                               ("attn.c_proj", (d, d)), ("mlp.c_fc", (d, f)),
                               ("mlp.c_proj", (f, d))):
                yield h + name + ".weight", size
                yield h + name + ".bias", size[1:]
            for name in ("ln_1", "ln_2"):
                yield h + name + ".weight", (d,)
                yield h + name + ".bias", (d,)
        yield "transformer.ln_f.weight", (d,)
        yield "transformer.ln_f.bias", (d,)
        return
    d, f = config["hidden_size"], config["intermediate_size"]
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], d)
    for layer in range(config["num_hidden_layers"]):
        h = f"model.layers.{layer}."
        for name, size in (("self_attn.q_proj", (d, d)),
                           ("self_attn.k_proj", (kv, d)),
                           ("self_attn.v_proj", (kv, d)),
                           ("self_attn.o_proj", (d, d)),
                           ("mlp.gate_proj", (f, d)), ("mlp.up_proj", (f, d)),
                           ("mlp.down_proj", (d, f))):
            yield h + name + ".weight", size
        yield h + "input_layernorm.weight", (d,)
        yield h + "post_attention_layernorm.weight", (d,)
    yield "model.norm.weight", (d,)
    yield "lm_head.weight", (config["vocab_size"], d)


def crafted(name, shape):
    mask = (1 << 64) - 1
    key = 0xcbf29ce484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001b3 & mask
    is_norm = "norm.weight" in name or ".ln_" in name and "weight" in name
    values = []
    for i in range(math.prod(shape)):
        x = (key + i) * 0x9e3779b97f4a7c15 & mask
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93 & mask
        x ^= x >> 32
        values.append(0.5 * ((x >> 40) / 2**24 - 0.5) + is_norm)
    return torch.tensor(values, dtype=torch.float64).reshape(shape).float()


def print_logits(values, file):
    for row in values.tolist():
        print(" ".join(f"{value:.9g}" for value in row), file=file)


def main(arguments):
    torch.set_num_threads(1)
    if arguments == ["--golden"]:
        for name, config in GOLDENS.items():
            tensors = {tensor: crafted(tensor, shape)
                       for tensor, shape in shapes(config)}
            tokens = [(7 * t + 3) % config["vocab_size"]
                      for t in range(NUM_TOKENS)]
            # In double: what fp32 of either side rounds is not in it.
            values = logits(config, {n: t.double() for n, t in tensors.items()},
                            tokens)
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                f"huggingface_logits_{name}.txt")
            with open(path, "w") as file:
                print_logits(values, file)
        return 0
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    config, tensors = read_directory(arguments[0])
    print_logits(logits(config, tensors, [int(t) for t in arguments[1:]]),
                 sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
