"""A small character transformer on a text made by a seeded grammar, on the emulated device.

Device and link both count: it scales well at first, then ever less.
"""

from __future__ import annotations

import random

import torch
from emulated_device import EmulatedDevice
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import malletrain.train as mt

SEED = 5
GLOBAL_BATCH = 32
EPOCHS = 9
CONTEXT = 32
WIDTH = 32
HEADS = 4
LAYERS = 2
WINDOWS = 1024
ALPHABET = " .abcdefghijklmnopqrstuvwxyz"
FLOPS_PER_ROW = 4_890_624

GRAMMAR = {
    "sentence": ("subject verb object", "subject verb object place", "place subject verb object"),
    "subject": ("the noun", "a quality noun", "the noun of the noun"),
    "object": ("the noun", "every noun", "a quality noun", "no noun"),
    "place": ("near the noun", "under a quality noun", "behind the noun"),
    "noun": ("node", "queue", "cluster", "cabinet", "reader", "river", "engine", "clock"),
    "verb": ("holds", "lends", "awaits", "follows", "returns", "measures"),
    "quality": ("quiet", "busy", "narrow", "patient", "distant"),
}


def make_text(length: int, seed: int) -> str:
    """Expand the grammar's sentence, again and again."""
    choice = random.Random(seed)  # noqa: S311  # a text to learn from, no secret

    def expand(word: str) -> str:
        if word not in GRAMMAR:
            return word
        return " ".join(expand(part) for part in choice.choice(GRAMMAR[word]).split())

    sentences: list[str] = []
    while sum(len(s) + 2 for s in sentences) < length:
        sentences.append(expand("sentence"))
    return ". ".join(sentences)[:length]


def make_data() -> TensorDataset:
    text = make_text(WINDOWS * CONTEXT + 1, SEED)
    codes = torch.tensor([ALPHABET.index(character) for character in text])
    return TensorDataset(codes[:-1].view(WINDOWS, CONTEXT), codes[1:].view(WINDOWS, CONTEXT))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.from_heads = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        rows, length, _ = hidden.shape
        heads = self.to_heads(self.norm_in(hidden)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.from_heads(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return hidden + self.feed(self.norm_out(hidden))


class CharTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.leave = nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.characters(codes) + self.positions(torch.arange(codes.shape[1]))
        return self.leave(self.blocks(hidden))


def make_model() -> nn.Module:
    return CharTransformer()


def loss_of(model: nn.Module, codes: Tensor, following: Tensor) -> Tensor:
    return functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    dataset = make_data()
    model = make_model()
    device = EmulatedDevice.for_model(model, FLOPS_PER_ROW)
    print(f"stated samples/s {device.rates(GLOBAL_BATCH)}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    job = mt.attach(model, optimizer, global_batch=GLOBAL_BATCH, seed=SEED)
    for codes, following in job.batches(dataset, epochs=EPOCHS):
        with device.step(len(codes), job.workers):
            optimizer.zero_grad()
            loss = loss_of(model, codes, following)
            loss.backward()
            optimizer.step()
        job.report(loss)
        if job.is_first and job.loss is not None and job.step % 10 == 0:
            print(f"samples {job.samples} loss {job.loss:.6f}")

    with torch.no_grad():
        print(f"final loss {loss_of(model, *dataset.tensors):.9f}")


if __name__ == "__main__":
    main()
