"""What the exit status of `mosaic` says. The only place where these numbers stand; docs/cli.md lists them from here."""

from enum import IntEnum


class ExitCode(IntEnum):
    """A status and its meaning."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        """A member is written as (status, meaning)."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    DONE = 0, "Done; so does what follows until it is stopped (`serve`, `tail`) when it is stopped."
    FAILURE = (
        1,
        "Another failure; for `doctor`: something is wrong; for `rollout` and `score`: all attempts or scores failed.",
    )
    USAGE = 2, "A command line or a setting that cannot be used."
    STORE = 3, "The database is not there, cannot be used, or (`db check`) is broken."
    ENGINE = 4, "vLLM is unreachable, or answered something unusable."
    TRAIN = 5, "Training could not start or did not finish."
    NOTHING_TO_TRAIN = 6, "There is nothing to learn from."
    PUBLISH = 7, "New weights could not be put live; the version before serves on."
    TAKEN = 8, "Another process does this work, which only one may do at a time."
    WARNINGS = 9, "Only `doctor`: nothing is wrong, but something will be, or may be."
    INTERRUPTED = 130, "Interrupted by Ctrl-C before it was done."
