"""A job for trying an installed wheel: a linear model on made-up data, a second of work."""

import torch
from torch.utils.data import TensorDataset

import malletrain.train as mt

torch.manual_seed(0)
inputs = torch.randn(512, 8)
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

job = mt.attach(model, optimizer, global_batch=32)
for rows, wanted in job.batches(dataset, epochs=10):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(rows), wanted)
    loss.backward()
    optimizer.step()
    job.report(loss)
