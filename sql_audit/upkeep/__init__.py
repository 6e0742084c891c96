"""What an operator changes: ``prune`` removes old jobs from the log, ``restore`` puts lost jobs back into Redis."""
