"""Train malleable PyTorch jobs on the transiently idle nodes of batch-scheduled machines."""

__version__ = "0.1.0"
