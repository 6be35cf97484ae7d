"""torch DCP: each rank's tensors, with `.metadata`, which comes last and by rename, as the marker."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import steps


def state(step):
    """What this rank has at a step."""
    rank = dist.get_rank()
    return {"step": step, f"rank{rank}": torch.full((1 << 18,), float(step * 10 + rank))}


dist.init_process_group("gloo")
step = steps.newest("step-")
steps.say(dist.get_rank(), f"start after {step}")
if step:
    found = state(0)
    dcp.load(found, checkpoint_id=steps.path(f"step-{step}"))
    expected = state(step)
    assert found["step"] == step, found["step"]
    name = f"rank{dist.get_rank()}"
    assert torch.equal(found[name], expected[name]), "not what was saved"
for step in range(step + 1, steps.last() + 1):
    dcp.save(state(step), checkpoint_id=steps.path(f"step-{step}"))
    steps.await_state(dist.get_rank(), f"step-{step}")
    dist.barrier()
    steps.say(dist.get_rank(), f"saved {step}")
dist.destroy_process_group()
