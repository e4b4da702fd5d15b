"""Alembic migrations, run on a connection that the caller has opened. `mosaic db upgrade` is their only way in."""

from pathlib import Path

from sqlalchemy import Connection


def known() -> list[str]:
    """The revisions, oldest first."""
    return sorted(path.stem[:4] for path in (Path(__file__).parent / "versions").glob("0*.py"))


def run(connection: Connection, current: str) -> None:
    """Upgrade from `current` to the newest revision, inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    command.ensure_version(config)
    command.stamp(config, current)
    command.upgrade(config, "head")
