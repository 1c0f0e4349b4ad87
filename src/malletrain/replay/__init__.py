"""What users ask of replays: policies, seeds and settings compared, alone or in sweeps."""
