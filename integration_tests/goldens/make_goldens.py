#!/usr/bin/python3
"""Trains small models with PyTorch and stores what came out.

    make_goldens.py [FILE]      (default: pytorch.json beside this script)

For every case: loss and gradient norm of ten steps in fp32, from weights and
tokens that are formulas of integers, so that the test that reads the file
(pytorch_golden_test.cc) makes exactly the same ones. The test needs no PyTorch;
this script needs Debian's python3-torch.

The models are those of huggingface_logits.py, on tensors with the names and
layouts of Hugging Face files.
"""

import json
import math
import pathlib
import sys

import torch
from torch.nn import functional

from huggingface_logits import logits

STEPS = 10
GLOBAL_BATCH = 8
OPTIMIZER = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
             "weight_decay": 0.1, "clip": 1.0}

# Fields of a job spec's model.
GPT2 = {"layers": 2, "hidden": 48, "heads": 6, "kv_heads": 6, "ffn": 192,
        "vocab": 257, "seq_len": 16, "norm": "layernorm", "norm_eps": 1e-5,
        "activation": "gelu", "positions": "learned", "bias": True}
LLAMA = {"layers": 2, "hidden": 48, "heads": 6, "kv_heads": 2, "ffn": 128,
         "vocab": 257, "seq_len": 16, "norm": "rmsnorm", "norm_eps": 1e-6,
         "activation": "swiglu", "positions": "rope", "rope_theta": 10000.0,
         "bias": False}

SCHEDULES = [{"decay": "constant", "warmup": 0, "min_lr": 0.0},
             {"decay": "linear", "warmup": 3, "min_lr": 1e-4},
             {"decay": "cosine", "warmup": 3, "min_lr": 1e-4}]


# ---- Weights and tokens ----

def fill(name, shape):
    """Fixed noise in [-1/16, 1/16) by name; gains of norms lie about 1.

    Element i: x = (FNV-1a(name) + i) * 0x9e3779b1, x ^= x >> 15,
    x *= 0x85ebca77, x ^= x >> 13, all modulo 2^32; the value is the upper 16
    bits less 2^15, times 2^-19: exact in fp32, plus 1 too.
    """
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = (seed ^ byte) * 0x01000193 % 2**32
    gain = 1.0 if name.endswith(".gain") else 0.0
    values = []
    for i in range(math.prod(shape)):
        x = (seed + i) * 0x9E3779B1 % 2**32
        x ^= x >> 15
        x = x * 0x85EBCA77 % 2**32
        x ^= x >> 13
        values.append(gain + ((x >> 16) - 2**15) * 2.0**-19)
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def native_weights(model):
    """All parameters by the names that Ebb gives them, [out, in]."""
    hidden, ffn = model["hidden"], model["ffn"]
    kv_width = hidden // model["heads"] * model["kv_heads"]
    gated = model["activation"] == "swiglu"
    weights = {}

    def add(name, *shape):
        weights[name] = fill(name, shape)

    def linear(name, outputs, inputs):
        add(name + ".weight", outputs, inputs)
        if model["bias"]:
            add(name + ".bias", outputs)

    def norm(name):
        add(name + ".gain", hidden)
        if model["norm"] == "layernorm" and model["bias"]:
            add(name + ".bias", hidden)

    add("embedding.weight", model["vocab"], hidden)
    if model["positions"] == "learned":
        add("position_embedding.weight", model["seq_len"], hidden)
    for layer in range(model["layers"]):
        norm(f"L{layer}.attention_norm")
        linear(f"L{layer}.qkv", hidden + 2 * kv_width, hidden)
        linear(f"L{layer}.attention_out", hidden, hidden)
        norm(f"L{layer}.mlp_norm")
        linear(f"L{layer}.mlp.fc", 2 * ffn if gated else ffn, hidden)
        linear(f"L{layer}.mlp.out", hidden, ffn)
    norm("final_norm")
    if not model["tied_embeddings"]:
        add("head.weight", model["vocab"], hidden)
    return weights


def batch(step, seq_len):
    """Tokens and targets of a step (from 1), [GLOBAL_BATCH, seq_len] each."""
    first = (step - 1) * GLOBAL_BATCH * seq_len
    stream = [(7919 * i + 104729 * (i // 7)) % 257
              for i in range(first, first + GLOBAL_BATCH * seq_len + 1)]
    shape = (GLOBAL_BATCH, seq_len)
    return (torch.tensor(stream[:-1]).reshape(shape),
            torch.tensor(stream[1:]).reshape(shape))


# ---- Ebb's names and layouts to those of Hugging Face files ----

def to_hugging_face(model, weights):
    """Returns (config, state) of a model and its parameters."""
    if model["positions"] == "learned":
        return gpt2_config(model), gpt2_state(model, weights)
    return llama_config(model), llama_state(model, weights)


def gpt2_config(model):
    return {"model_type": "gpt2", "n_layer": model["layers"],
            "n_embd": model["hidden"], "n_head": model["heads"],
            "n_inner": model["ffn"], "n_positions": model["seq_len"],
            "vocab_size": model["vocab"], "activation_function": "gelu_new",
            "layer_norm_epsilon": model["norm_eps"],
            "tie_word_embeddings": model["tied_embeddings"]}


def gpt2_state(model, weights):
    state = {"transformer.wte.weight": weights["embedding.weight"],
             "transformer.wpe.weight": weights["position_embedding.weight"],
             "transformer.ln_f.weight": weights["final_norm.gain"],
             "transformer.ln_f.bias": weights["final_norm.bias"]}
    for layer in range(model["layers"]):
        prefix = f"transformer.h.{layer}."
        for ours, theirs in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
            ours = f"L{layer}.{ours}"
            state[prefix + theirs + ".weight"] = weights[ours + ".gain"]
            state[prefix + theirs + ".bias"] = weights[ours + ".bias"]
        for ours, theirs in (("qkv", "attn.c_attn"),
                             ("attention_out", "attn.c_proj"),
                             ("mlp.fc", "mlp.c_fc"), ("mlp.out", "mlp.c_proj")):
            ours = f"L{layer}.{ours}"
            # Stored as [in, out].
            state[prefix + theirs + ".weight"] = weights[ours + ".weight"].t()
            state[prefix + theirs + ".bias"] = weights[ours + ".bias"]
    if not model["tied_embeddings"]:
        state["lm_head.weight"] = weights["head.weight"]
    return state


def llama_config(model):
    return {"model_type": "llama", "num_hidden_layers": model["layers"],
            "hidden_size": model["hidden"],
            "num_attention_heads": model["heads"],
            "num_key_value_heads": model["kv_heads"],
            "intermediate_size": model["ffn"],
            "max_position_embeddings": model["seq_len"],
            "vocab_size": model["vocab"], "rms_norm_eps": model["norm_eps"],
            "rope_theta": model["rope_theta"],
            "tie_word_embeddings": model["tied_embeddings"]}


def llama_state(model, weights):
    hidden, ffn = model["hidden"], model["ffn"]
    kv_width = hidden // model["heads"] * model["kv_heads"]
    state = {"model.embed_tokens.weight": weights["embedding.weight"],
             "model.norm.weight": weights["final_norm.gain"]}
    for layer in range(model["layers"]):
        ours, theirs = f"L{layer}.", f"model.layers.{layer}."
        state[theirs + "input_layernorm.weight"] = (
            weights[ours + "attention_norm.gain"])
        state[theirs + "post_attention_layernorm.weight"] = (
            weights[ours + "mlp_norm.gain"])
        q, k, v = weights[ours + "qkv.weight"].split(
            (hidden, kv_width, kv_width))
        state[theirs + "self_attn.q_proj.weight"] = q
        state[theirs + "self_attn.k_proj.weight"] = k
        state[theirs + "self_attn.v_proj.weight"] = v
        state[theirs + "self_attn.o_proj.weight"] = (
            weights[ours + "attention_out.weight"])
        gate, up = weights[ours + "mlp.fc.weight"].split(ffn)
        state[theirs + "mlp.gate_proj.weight"] = gate
        state[theirs + "mlp.up_proj.weight"] = up
        state[theirs + "mlp.down_proj.weight"] = (
            weights[ours + "mlp.out.weight"])
    if not model["tied_embeddings"]:
        state["lm_head.weight"] = weights["head.weight"]
    return state


# ---- Training ----

def learning_rate(schedule, step):
    """Of the update `step`, from 1: warmup to lr, then decay to min_lr."""
    lr, warmup = OPTIMIZER["lr"], schedule["warmup"]
    if step <= warmup:
        return lr * step / warmup
    peak = max(warmup, 1)
    if step <= peak or schedule["decay"] == "constant":
        return lr
    progress = (step - peak) / (STEPS - peak)
    weight = {"linear": 1 - progress,
              "cosine": (1 + math.cos(math.pi * progress)) / 2}
    return schedule["min_lr"] + (
        lr - schedule["min_lr"]) * weight[schedule["decay"]]


def train(config, state, micro_batch, schedule, seq_len):
    """Returns (losses, gradient norms) of STEPS updates."""
    tensors = {name: torch.nn.Parameter(tensor.clone().contiguous())
               for name, tensor in state.items()}
    parameters = list(tensors.values())
    # Weight decay for matrices alone.
    groups = [
        {"params": [p for p in parameters if p.dim() > 1],
         "weight_decay": OPTIMIZER["weight_decay"]},
        {"params": [p for p in parameters if p.dim() == 1],
         "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, lr=OPTIMIZER["lr"], eps=OPTIMIZER["eps"],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]))
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        tokens, targets = batch(step, seq_len)
        optimizer.zero_grad()
        total = 0.0
        for first in range(0, GLOBAL_BATCH, micro_batch):
            part = slice(first, first + micro_batch)
            predicted = torch.cat([logits(config, tensors, sequence.tolist())
                                   for sequence in tokens[part]])
            loss = functional.cross_entropy(
                predicted, targets[part].flatten(),
                reduction="sum") / targets.numel()
            loss.backward()
            total += loss.item()
        norm = math.sqrt(sum(p.grad.double().pow(2).sum().item()
                             for p in parameters))
        if norm > OPTIMIZER["clip"]:
            for p in parameters:
                p.grad.mul_(OPTIMIZER["clip"] / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, step)
        optimizer.step()
        losses.append(total)
        norms.append(norm)
    return losses, norms


def main():
    torch.set_num_threads(1)
    cases = []
    for family, options in (("gpt2", GPT2), ("llama", LLAMA)):
        for tied in (True, False):
            model = dict(options, tied_embeddings=tied)
            for micro_batch in (8, 2):
                for schedule in SCHEDULES:
                    losses, norms = train(
                        *to_hugging_face(model, native_weights(model)),
                        micro_batch, schedule, model["seq_len"])
                    name = "_".join(
                        (family, "tied" if tied else "untied",
                         f"accumulation{GLOBAL_BATCH // micro_batch}",
                         schedule["decay"]))
                    cases.append({
                        "name": name, "model": model, "micro": micro_batch,
                        "lr_schedule": schedule, "loss": losses,
                        "gradient_norm": norms})
    path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                        pathlib.Path(__file__).with_name("pytorch.json"))
    golden = {"made_with": f"PyTorch {torch.__version__}, fp32",
              "global": GLOBAL_BATCH, "steps": STEPS, "optimizer": OPTIMIZER}
    lines = [json.dumps(golden)[:-1] + ', "cases": [']
    lines.append(",\n".join(json.dumps(case) for case in cases))
    path.write_text("\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
