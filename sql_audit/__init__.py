"""The audit log of rq-core: what Redis did, mirrored to SQL exactly once, and checkable there."""
