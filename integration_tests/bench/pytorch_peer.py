#!/usr/bin/python3
"""Trains the bench's models with PyTorch (eager) and prints one JSON object.

The work is that of `ebb-bench`: global batch of 8 sequences in microbatches of
2, gradients accumulated, norm clipped to 1, AdamW with decay on matrices only.
bf16 is autocast over fp32 weights. Attention is written out as scores, causal
softmax and context, which is what this version of PyTorch has on a CPU.

Printed: name, version, blas (the library behind its fp32 products: PyTorch is
as fast as that), threads, step_seconds (median), layers_seconds (median:
forward and backward of the layers alone, all microbatches of a step).
"""

import argparse
import contextlib
import json
import math
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {
    "gpt2-124m": dict(layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072,
                      vocab=50257, seq_len=512, llama=False),
    "llama": dict(layers=12, hidden=768, heads=12, kv_heads=4, ffn=2048,
                  vocab=32000, seq_len=512, llama=True),
    "small": dict(layers=4, hidden=256, heads=4, kv_heads=4, ffn=1024,
                  vocab=4096, seq_len=256, llama=False),
}
MICRO_BATCH = 2
GLOBAL_BATCH = 8


class RMSNorm(nn.Module):
    """Zhang & Sennrich 2019."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        return (x * scale).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    """Su et al. 2021, halves as pairs; x is [B, H, T, W]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):

    def __init__(self, shape):
        super().__init__()
        hidden = shape["hidden"]
        self.heads, self.kv_heads = shape["heads"], shape["kv_heads"]
        self.width = hidden // self.heads
        self.llama = shape["llama"]
        bias = not self.llama
        kv = self.kv_heads * self.width
        self.qkv = nn.Linear(hidden, hidden + 2 * kv, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)
        seq_len = shape["seq_len"]
        mask = torch.full((seq_len, seq_len), float("-inf")).triu(1)
        self.register_buffer("mask", mask)
        positions = torch.arange(seq_len).float()
        pairs = torch.arange(0, self.width, 2).float() / self.width
        angles = torch.outer(positions, 10000.0**-pairs).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        batch, tokens, hidden = x.shape
        kv = self.kv_heads * self.width
        q, k, v = self.qkv(x).split((hidden, kv, kv), dim=-1)

        def by_head(value, heads):
            return value.view(batch, tokens, heads, self.width).transpose(1, 2)

        q, k, v = (by_head(q, self.heads), by_head(k, self.kv_heads),
                   by_head(v, self.kv_heads))
        if self.llama:
            q = rotate(q, self.cos.to(q.dtype), self.sin.to(q.dtype))
            k = rotate(k, self.cos.to(k.dtype), self.sin.to(k.dtype))
            group = self.heads // self.kv_heads
            k = k.repeat_interleave(group, dim=1)
            v = v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.width)
        probabilities = F.softmax(scores + self.mask, dim=-1)
        context = (probabilities.to(v.dtype) @ v).transpose(1, 2)
        return self.out(context.reshape(batch, tokens, hidden))


class Layer(nn.Module):

    def __init__(self, shape):
        super().__init__()
        hidden, ffn = shape["hidden"], shape["ffn"]
        self.llama = shape["llama"]
        make_norm = RMSNorm if self.llama else nn.LayerNorm
        self.attention_norm = make_norm(hidden)
        self.attention = Attention(shape)
        self.mlp_norm = make_norm(hidden)
        self.fc = nn.Linear(hidden, 2 * ffn if self.llama else ffn,
                            bias=not self.llama)
        self.out = nn.Linear(ffn, hidden, bias=not self.llama)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        hidden = self.fc(self.mlp_norm(x))
        if self.llama:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * up
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return x + self.out(hidden)


class Model(nn.Module):

    def __init__(self, shape):
        super().__init__()
        hidden = shape["hidden"]
        self.llama = shape["llama"]
        self.embedding = nn.Embedding(shape["vocab"], hidden)
        if not self.llama:
            self.positions = nn.Embedding(shape["seq_len"], hidden)
        self.layers = nn.ModuleList(
            Layer(shape) for _ in range(shape["layers"]))
        self.norm = RMSNorm(hidden) if self.llama else nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, shape["vocab"], bias=False)
        if not self.llama:
            self.head.weight = self.embedding.weight

    def run_layers(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        if not self.llama:
            x = x + self.positions.weight[:tokens.shape[1]]
        logits = self.head(self.norm(self.run_layers(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def seconds_of(body, repeats):
    """Median seconds of `repeats` calls after one to warm up."""
    body()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def blas_library():
    """File of the BLAS that this process has loaded."""
    torch.ones(2, 2) @ torch.ones(2, 2)
    with open("/proc/self/maps", encoding="ascii") as maps:
        files = {line.split()[-1] for line in maps if "blas" in line}
    return ", ".join(sorted(files)) or "built in"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    shape = SHAPES[args.shape]
    model = Model(shape)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1),
         dict(params=vectors, weight_decay=0.0)],
        lr=1e-4, betas=(0.9, 0.95), eps=1e-8)
    num_microbatches = GLOBAL_BATCH // MICRO_BATCH
    size = (MICRO_BATCH, shape["seq_len"])
    tokens = [torch.randint(shape["vocab"], size)
              for _ in range(num_microbatches)]
    targets = [torch.randint(shape["vocab"], size)
               for _ in range(num_microbatches)]

    def precision():
        if args.precision == "bf16":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def step():
        optimizer.zero_grad(set_to_none=False)
        for inputs, outputs in zip(tokens, targets):
            with precision():
                loss = model(inputs, outputs) / num_microbatches
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    stream = torch.randn(*size, shape["hidden"], requires_grad=True)
    gradient = torch.randn(*size, shape["hidden"])

    def layers():
        for _ in range(num_microbatches):
            with precision():
                out = model.run_layers(stream)
            out.backward(gradient.to(out.dtype))

    print(json.dumps({
        "name": "PyTorch",
        "version": torch.__version__,
        "blas": blas_library(),
        "threads": torch.get_num_threads(),
        "step_seconds": seconds_of(step, args.steps),
        "layers_seconds": seconds_of(layers, args.steps),
    }))


if __name__ == "__main__":
    main()
