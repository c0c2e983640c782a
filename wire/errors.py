"""What can go wrong, by kind. Every message names what is wrong and what to do; nothing decides by its text."""


class CoterieError(Exception):
    """A mistake that a user can mend, or a run that cannot go on."""


class ConfigError(CoterieError, ValueError):
    """A wrong key or value; the message names the key, the value and the remedy."""


class RunFailed(CoterieError):
    """The run cannot go on; the message says why and what to do."""


class Refused(CoterieError, ValueError):
    """A message that cannot be used; the message says why."""
