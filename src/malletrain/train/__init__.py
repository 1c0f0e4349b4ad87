"""Make a PyTorch training script malleable: it grows and shrinks while it runs.

```python
import malletrain.train as mt

job = mt.attach(model, optimizer, global_batch=256)
for x, y in job.batches(dataset, epochs=10):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    job.report(loss)
```
"""

from __future__ import annotations

from malletrain.train.session import Session, attach

__all__ = ["Session", "attach"]
