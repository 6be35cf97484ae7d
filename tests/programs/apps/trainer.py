"""Hugging Face's Trainer with a tiny model and data of its own. With one process `trainer_state.json` is the marker;
with more a callback sets it."""

import os

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import steps

RANK = int(os.environ.get("RANK", "0"))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(index, index + 16) % 64
        return {"input_ids": ids, "labels": ids}


class Seal(TrainerCallback):
    def on_save(self, args, state, control, **_):
        if dist.is_initialized():
            dist.barrier()
            steps.touch(RANK, f"checkpoint-{state.global_step}")
        steps.await_state(RANK, f"checkpoint-{state.global_step}")
        steps.say(RANK, f"saved {state.global_step}")


torch.manual_seed(7)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=steps.SCR,
    max_steps=steps.last(),
    save_steps=1,
    per_device_train_batch_size=2,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Numbers(), callbacks=[Seal()])
newest = get_last_checkpoint(steps.SCR)
steps.say(RANK, f"start after {steps.newest('checkpoint-')}")
trainer.train(resume_from_checkpoint=newest)
assert trainer.state.global_step == steps.last()
