# SPDX-License-Identifier: Apache-2.0
"""Trains with a framework on top of torch.distributed: ``trainers_job.py WHICH BACKEND FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import counting

WHICH, BACKEND, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
RANK = int(os.environ["RANK"])
STEPS, BATCH, WIDTH, CLASSES = 6, 4, 32, 8


def data() -> TensorDataset:
    """The same rows on all ranks; the frameworks divide them."""
    numbers = torch.Generator().manual_seed(7)
    rows = STEPS * BATCH * int(os.environ["WORLD_SIZE"])
    inputs = torch.randn(rows, WIDTH, generator=numbers)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (rows,), generator=numbers))


def perceptron() -> nn.Module:
    """The weights become equal on all ranks only through the framework."""
    torch.manual_seed(RANK)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def accelerate() -> dict[str, Any]:
    """Hugging Face Accelerate, which uses the existing process group."""
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list

    dist.init_process_group(BACKEND)
    accelerator = Accelerator(cpu=True)
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(data(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, wanted in loader:
        loss = nn.functional.cross_entropy(model(inputs), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).tolist())
    things = broadcast_object_list([accelerator.process_index])
    mean = accelerator.reduce(torch.ones(2) * accelerator.process_index, reduction="mean").tolist()
    accelerator.wait_for_everyone()
    return {"losses": losses, "things": things, "mean": mean}


def transformers() -> dict[str, Any]:
    """A Transformers Trainer with a tiny model from a configuration."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    dist.init_process_group(BACKEND)
    set_seed(RANK)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **sizes))
    rows = torch.randint(0, 64, (STEPS * BATCH * dist.get_world_size(), 16), generator=torch.Generator().manual_seed(3))
    arguments = TrainingArguments(
        output_dir=str(FOLDER / "trainer"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = float(sum(parameter.double().sum() for parameter in model.parameters()))
    return {"losses": losses, "weights": weights, "mode": str(arguments.parallel_mode)}


def lightning() -> dict[str, Any]:
    """Lightning's DDP, which takes a backend's name."""
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy

    losses: list[float] = []

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = perceptron()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            del index
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            losses.append(loss.item())
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    trainer = L.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size() if dist.is_initialized() else int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=BACKEND),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=str(FOLDER),
    )
    trainer.fit(Module(), DataLoader(data(), batch_size=BATCH))
    return {"losses": losses, "mean": float(trainer.callback_metrics["loss"])}


counting.log_ours()
found = {"accelerate": accelerate, "transformers": transformers, "lightning": lightning}[WHICH]()
found["backend"] = dist.get_backend()
found["ours"] = counting.ours()
(FOLDER / f"{RANK}.json").write_text(json.dumps(found))
if dist.is_initialized():
    dist.destroy_process_group()
