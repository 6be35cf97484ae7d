"""DeepSpeed: a directory for each step, the marker touched after the call, and the file `latest`, which follows it."""

import deepspeed
import torch
import torch.distributed as dist

import steps

deepspeed.init_distributed("gloo")
torch.manual_seed(7)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
config = {"train_micro_batch_size_per_gpu": 1}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
rank = dist.get_rank()
step = steps.newest("global_step")
steps.say(rank, f"start after {step}")
if step:
    found, client = engine.load_checkpoint(steps.SCR)
    assert found and client["step"] == step, (found, client)
    assert float(engine.module.bias[0]) == client["bias"], "not what was saved"
for step in range(step + 1, steps.last() + 1):
    loss = engine(torch.ones(1, 64)).sum()
    engine.backward(loss)
    engine.step()
    client = {"step": step, "bias": float(engine.module.bias[0])}
    engine.save_checkpoint(steps.SCR, tag=f"global_step{step}", client_state=client)
    steps.touch(rank, f"global_step{step}")
    dist.barrier()
    steps.say(rank, f"saved {step}")
