"""Train a tiny GPT-2 or Llama on random tokens with transformers' own Trainer, 20 steps.

Prints a checksum of each batch that the model gets and, at the end, of the parameters.
"""

import argparse
import hashlib
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

VOCABULARY = 100
CONTEXT = 16


def make(name: str) -> PreTrainedModel:
    """Return a new model; its weights depend on nothing but its name."""
    torch.manual_seed(0)
    if name == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2)
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=CONTEXT,
        )
    )


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of tokens; the seed decides the second half of them."""

    def __init__(self, seed: int) -> None:
        halves = [torch.Generator().manual_seed(s) for s in (0, seed)]
        self.tokens = torch.cat(
            [torch.randint(VOCABULARY, (40, CONTEXT), generator=half) for half in halves]
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def checksum(*tensors: torch.Tensor) -> str:
    return hashlib.sha1(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
    print("batch", checksum(batch["input_ids"]))
    return batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["gpt2", "llama"])
    parser.add_argument("--data-seed", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="what dropout draws")
    parser.add_argument("--perturb", metavar="NAME", help="parameter that starts one ULP off")
    args = parser.parse_args()
    model = make(args.model)
    if args.perturb:
        with torch.no_grad():
            first = model.get_parameter(args.perturb).view(-1)[:1]
            first.copy_(torch.nextafter(first, first + 1))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=20,
            per_device_train_batch_size=2,
            seed=args.seed,
            data_seed=0,  # The order of the samples is drawn from a generator of its own.
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(
            model=model,
            args=arguments,
            train_dataset=RandomTokens(args.data_seed),
            data_collator=collate,
        ).train()
    print("params", checksum(*model.parameters()))


if __name__ == "__main__":
    main()
