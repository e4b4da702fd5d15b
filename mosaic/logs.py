"""Structured logs: key-value, JSON when standard error is not a terminal. Bodies and keys are never logged.

What libraries log (uvicorn, asyncio, SQLAlchemy) comes out in the same form, from warnings on.
"""

import logging
import sys

import structlog


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
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
