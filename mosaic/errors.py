"""The exceptions of Mosaic, one subclass per boundary that can be crossed wrongly.

    MosaicError
    ├── SettingsError     configuration that cannot be used
    ├── StoreError        the database refused, is missing or holds something unexpected
    ├── RequestError      a client's request that we cannot accept (carries an HTTP status)
    ├── EngineError       vLLM is unreachable, died or answered something unusable
    ├── TrainError        training cannot start or did not finish
    │   └── NothingToTrain  there is nothing to learn from; carries the reasons
    ├── PublishError      new weights could not be put live
    │   ├── GateError       the command that judges them failed
    │   └── PolicyPinned    a version is held, so no other goes live
    └── LeaseTaken        another process does this work, which only one may do at a time

Raise plainly where the fault is seen; a boundary (CLI, route, job) turns it into an exit code or a status once.
Every message says what was wrong and where; `next_step` says what to do about it.
"""

from mosaic.exit_codes import ExitCode


class MosaicError(Exception):
    """Base of every error that Mosaic raises on purpose."""

    exit_code = ExitCode.FAILURE

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".rstrip()


class SettingsError(MosaicError):
    """A setting is unknown, malformed or contradicts another."""

    exit_code = ExitCode.USAGE


class StoreError(MosaicError):
    """The database cannot be used."""

    exit_code = ExitCode.STORE

    def __init__(self, message: str, next_step: str = "", *, permanent: bool = False) -> None:
        super().__init__(message, next_step)
        self.permanent = permanent
        """True when what was to be written can never be: trying again is of no use."""


class RequestError(MosaicError):
    """A client's request cannot be accepted."""

    def __init__(self, message: str, next_step: str = "", *, status: int = 400) -> None:
        super().__init__(message, next_step)
        self.status = status


class EngineError(MosaicError):
    """The inference engine is unreachable, died or answered something unusable."""

    exit_code = ExitCode.ENGINE


class TrainError(MosaicError):
    """Training could not start or did not finish."""

    exit_code = ExitCode.TRAIN


class NothingToTrain(TrainError):
    """No trajectory carries a learning signal; the message counts why each was left out."""

    exit_code = ExitCode.NOTHING_TO_TRAIN


class PublishError(MosaicError):
    """New weights could not be put live; the previous version serves on."""

    exit_code = ExitCode.PUBLISH


class GateError(PublishError):
    """The command that judges a new version failed, so nothing is known of it."""


class PolicyPinned(PublishError):
    """The live version is held (`mosaic policy pin`), so no other goes live."""


class LeaseTaken(MosaicError):
    """Another process does this work, which only one may do at a time."""

    exit_code = ExitCode.TAKEN
