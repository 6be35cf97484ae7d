"""Megatron's format `torch_dist`, as far as megatron-core writes it: `metadata.json`, which comes last, is the marker.
Megatron-LM itself is not here."""

import os

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor

import steps


def state(step):
    rank = dist.get_rank()
    tensor = torch.full((1 << 16,), float(step * 10 + rank))
    return {"weight": ShardedTensor.from_rank_offsets("weight", tensor, (0, rank, dist.get_world_size()))}


dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(1, 1)
rank = dist.get_rank()
step = steps.newest("iter_")
steps.say(rank, f"start after {step}")
if step:
    found = dist_checkpointing.load(state(0), steps.path(f"iter_{step:07}"))
    assert torch.equal(found["weight"], state(step)["weight"].data), "not what was saved"
for step in range(step + 1, steps.last() + 1):
    name = f"iter_{step:07}"
    if rank == 0:
        os.mkdir(steps.path(name))
    dist.barrier()
    dist_checkpointing.save(state(step), steps.path(name))
    steps.await_state(rank, name)
    dist.barrier()
    steps.say(rank, f"saved {step}")
dist.destroy_process_group()
