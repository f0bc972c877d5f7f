"""Six steps, with the torch beside it."""

from torch.optim.optimizer import Optimizer

optimizer = Optimizer()
for step in range(6):
    optimizer.step()
    print("step", step)
