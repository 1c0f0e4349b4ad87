"""A user's whole story on a Slurm of this machine alone, checked and reported."""
