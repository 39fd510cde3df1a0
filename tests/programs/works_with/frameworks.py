"""Trains with trainers that others wrote; each case_* function is one, see common.py."""

import tempfile
from collections.abc import Iterable
from typing import Any

import torch
from common import STEPS, batch, fit, run_cases
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY = 40


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        attention_dropout=0.1,
    )
    return LlamaForCausalLM(config)


def tokens(rows: int = 2) -> Tensor:
    return torch.randint(1, VOCABULARY, (rows, 8))


def language_loss(model: nn.Module) -> Tensor:
    text = tokens()
    loss: Tensor = model(input_ids=text, labels=text).loss
    return loss


def case_trainer() -> Iterable[Tensor]:
    from transformers import Trainer, TrainingArguments

    model = llama()
    samples = [{"input_ids": row, "labels": row} for row in tokens(4 * STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=samples, eval_dataset=samples[:2]).train()
    yield from model.parameters()


def case_accelerate() -> Iterable[Tensor]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(batch(8 * STEPS)), batch_size=4, shuffle=True)
    net, optimizer, schedule, loader = accelerator.prepare(net, optimizer, schedule, loader)
    for (x,) in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(x).square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    yield from net.parameters()


def case_lightning() -> Iterable[Tensor]:
    import lightning

    class Learner(lightning.LightningModule):
        """A net, how it learns and how it is validated."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

        def training_step(self, rows: list[Tensor], index: int) -> Tensor:
            loss: Tensor = self.net(rows[0]).square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, rows: list[Tensor], index: int) -> None:
            self.log("validation", self.net(rows[0]).square().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    learner = Learner()
    loader = DataLoader(TensorDataset(batch(4 * STEPS)), batch_size=4, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            val_check_interval=1,
            gradient_clip_val=0.5,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(learner, loader, DataLoader(TensorDataset(batch())))
    return learner.parameters()


def case_lora() -> Iterable[Tensor]:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(llama(), config)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    return fit(model, lambda: language_loss(model), optimizer)


def case_generation() -> Iterable[Tensor]:
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        yield from fit(model, lambda: language_loss(model), optimizer, steps=1)
        model.eval()
        for do_sample in (False, True):
            yield model.generate(tokens(1), max_new_tokens=4, do_sample=do_sample)
        model.train()


if __name__ == "__main__":
    run_cases(globals(), strict=False)
