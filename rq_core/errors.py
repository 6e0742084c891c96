"""The errors of rq-core: one root, so that a caller can catch them all."""


class RqCoreError(Exception):
    """Something in rq-core went wrong."""


class ServerUnavailable(RqCoreError):  # noqa: N818 - it reads as what happened
    """No Redis server answers."""
