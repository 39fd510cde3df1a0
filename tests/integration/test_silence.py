"""Twins of many kinds of model: no difference is reported at rung op, and no bit is changed.

FPDIFF_TEST_SEEDS=3 makes three pairs of each kind instead of one.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import hide_the_past
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fpdiff

STEPS = 3
Training = Iterator[Tensor]  # After each step what the step ended with.


def fit(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer | None = None
) -> Training:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield from (p.detach() for p in model.parameters())


def language_model(name: str, **config: Any) -> Training:
    import transformers

    settings = getattr(transformers, f"{name}Config")(
        vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2, **config
    )
    kind = "MaskedLM" if name == "Bert" else "CausalLM"
    head = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM"}
    model = getattr(transformers, head.get(name, f"{name}For{kind}"))(settings)

    def loss() -> Tensor:
        tokens = torch.randint(3, 60, (2, 12))
        result: Tensor = model(input_ids=tokens, labels=tokens).loss
        return result

    yield from fit(model, loss)


def gpt2() -> Training:
    return language_model("GPT2", n_embd=16, n_layer=2, n_head=2, n_positions=16)


def llama() -> Training:
    return language_model(
        "Llama",
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )


def bert() -> Training:
    return language_model(
        "Bert",
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
    )


def mixtral() -> Training:
    return language_model(
        "Mixtral",
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )


def convnet() -> Training:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.1),
        nn.Flatten(),
        nn.Linear(8 * 16, 5),
    )

    def loss() -> Tensor:
        return F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,)))

    yield from fit(model, loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def lstm() -> Training:
    model = nn.ModuleDict({"rnn": nn.LSTM(6, 8, 2, dropout=0.2), "out": nn.Linear(8, 1)})

    def loss() -> Tensor:
        found: Tensor = model["out"](model["rnn"](torch.randn(5, 3, 6))[0]).square().mean()
        return found

    yield from fit(model, loss)


def gan() -> Training:
    maker = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 8))
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (maker, judge)]
    for _ in range(STEPS):
        made = maker(torch.randn(6, 4))
        both = judge(torch.randn(6, 8)), judge(made.detach())
        optimizers[1].zero_grad()
        sum(F.softplus(s * v).mean() for s, v in zip((-1, 1), both, strict=True)).backward()  # type: ignore[union-attr]
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.softplus(-judge(made)).mean().backward()
        optimizers[0].step()
        yield from (p.detach() for m in (maker, judge) for p in m.parameters())


def embeddings() -> Training:
    tables = nn.ModuleList([nn.EmbeddingBag(50, 8, mode=m) for m in ("sum", "mean", "max")])
    model = nn.ModuleDict({"tables": tables, "one": nn.Embedding(9, 24), "out": nn.Linear(24, 1)})

    def loss() -> Tensor:
        bags = torch.cat([table(torch.randint(50, (6, 4))) for table in tables], 1)
        return model["out"](bags * model["one"](torch.randint(9, (6,)))).square().mean()  # type: ignore[no-any-return]

    yield from fit(model, loss)


def checkpointed() -> Training:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.drop, self.out = nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.out(self.drop(F.gelu(self.inp(x))))  # type: ignore[no-any-return]

    model = nn.ModuleList([Block(), Block()])

    def loss() -> Tensor:
        x = torch.randn(4, 8, requires_grad=True)
        for index, block in enumerate(model):
            x = checkpoint(block, x, use_reentrant=bool(index))
        return x.square().mean()

    yield from fit(model, loss)


def mixed_precision() -> Training:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(torch.randn(6, 8)), torch.randint(4, (6,)))

    yield from fit(model, loss)


def encoder_decoder() -> Training:
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)
    return fit(model, lambda: model(torch.randn(2, 5, 16), torch.randn(2, 4, 16)).square().mean())


MODELS: list[Callable[[], Training]] = [
    gpt2,
    llama,
    bert,
    mixtral,
    convnet,
    lstm,
    gan,
    embeddings,
    checkpointed,
    mixed_precision,
    encoder_decoder,
]


def train(model: Callable[[], Training], seed: int, run: Path | None) -> str:
    """Train, and return a checksum of every parameter after every step."""
    hide_the_past()
    torch.manual_seed(seed)
    found = hashlib.sha1()
    with fpdiff.record(run, level="op") if run else nullcontext():
        for tensor in model():
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("seed", range(int(os.environ.get("FPDIFF_TEST_SEEDS", "1"))))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_twins_are_silent(model: Callable[[], Training], seed: int, tmp_path: Path) -> None:
    sums = [train(model, seed, run) for run in (None, tmp_path / "a", tmp_path / "b")]
    assert sums[0] == sums[1] == sums[2]
    verdict = fpdiff.compare(tmp_path / "a", tmp_path / "b")
    assert verdict.verdict == "identical", verdict.summary
    assert not verdict.notes
    assert "stopped" not in fpdiff.open_run(tmp_path / "a").ranks[0].info
