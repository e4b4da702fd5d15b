"""Structured logs: key-value, JSON when standard error is not a terminal. Bodies and keys are never logged.

What libraries log (uvicorn, asyncio, SQLAlchemy) has the same form, from warnings on, without what was cancelled.
"""

import asyncio
import logging
import re
import sys

import structlog

_CANCELLED = re.compile(r"(?s)Traceback \(most recent call last\):\n.*\nasyncio\.exceptions\.CancelledError[^\n]*\n")
"""A traceback that ends in a cancellation."""


def configure() -> None:
    """Set up logging for a process; call once, in each."""
    terminal = sys.stderr.isatty()
    added: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[structlog.typing.Processor] = (
        # The default shows local variables: bodies and keys among them.
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*added, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    of_libraries = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*added, structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(of_libraries)
    handler.addFilter(_is_news)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a library's line is worth telling: uvicorn calls each request that a stop cancels an error, and the
    lifespan that a second Ctrl-C cancels, whose traceback Starlette gives it as text."""
    if record.exc_info is not None:
        return not isinstance(record.exc_info[1], asyncio.CancelledError)
    return record.name != "uvicorn.error" or _CANCELLED.fullmatch(record.getMessage()) is None
