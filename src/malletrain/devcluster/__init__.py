"""A Slurm cluster of this machine alone, to try the product on and to test it with."""

from malletrain.devcluster.cluster import DevCluster
from malletrain.devcluster.settings import Preempt, Settings

__all__ = ["DevCluster", "Preempt", "Settings"]
