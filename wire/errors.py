"""What can go wrong, by kind. Every message names what is wrong and what to do; nothing decides by its text."""

from collections.abc import Mapping


class CoterieError(Exception):
    """A mistake that a user can mend, or a run that cannot go on."""


class ConfigError(CoterieError, ValueError):
    """A wrong key or value; the message names the key, the value and the remedy."""


class RunFailed(CoterieError):
    """The run cannot go on; the message says why and what to do."""


class RunStopped(RunFailed):
    """Somebody asked for its end."""


class Refused(CoterieError, ValueError):
    """A message that cannot be used, for what is in it."""


class NotFinite(Refused):
    """It has numbers that are not finite."""


class TooLong(Refused):
    """It is far longer than what is usual in this run."""


class Absent(Refused):
    """There is no message, or an error in its place: whoever should have sent it was away, or failed."""


class NoQuorum(RunFailed):
    """Too few clients answered well in a round; why each of the others is left out."""

    def __init__(self, message: str, left_out: Mapping[str, Refused]) -> None:
        super().__init__(message)
        self.left_out = left_out
