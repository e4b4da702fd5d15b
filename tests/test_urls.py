"""URLs as people see them: what opens the door is not in them, and what they are is."""

import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from mosaic.urls import WebUrl, shown_url

WEB: TypeAdapter[str] = TypeAdapter(WebUrl)

CASES = [
    ("http://h:8000/v1", "http://h:8000/v1"),
    ("http://h:8000/v1/@x", "http://h:8000/v1/@x"),
    ("http://user:SECRET@h/v1", "http://***@h/v1"),
    ("https://SECRET@h/v1", "https://***@h/v1"),
    ("http://user:SEC/RET@h/v1", "http://***@h/v1"),
    ("postgresql://me:SECRET@h:5432/db", "postgresql://me:***@h:5432/db"),
    ("postgresql://me:SEC@RET@h:port/db", "postgresql://me:***@h:port/db"),
    ("postgresql://me@h/db?password=SECRET&sslmode=require", "postgresql://me@h/db?password=***&sslmode=require"),
    ("postgresql://me@h/db?sslmode=require&pass%77ord=SECRET", "postgresql://me@h/db?sslmode=require&pass%77ord=***"),
    ("https://h/hook?Token=SECRET#x", "https://h/hook?Token=***#x"),
    ("sqlite:////var/a:b@c.db", "sqlite:////var/a:b@c.db"),
    ("no URL", "no URL"),
]


@pytest.mark.parametrize(("url", "shown"), CASES)
def test_what_is_secret_is_masked_and_nothing_else(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(st.text(string.printable, max_size=20), st.sampled_from(["postgresql", "postgresql+psycopg"]))
@example("5/", "postgresql")
def test_no_password_of_a_database_is_shown_whatever_is_in_it(odd: str, scheme: str) -> None:
    assert "SECRET" not in shown_url(f"{scheme}://user:{odd}SECRET@host/v1")


@example("@?")
@given(st.text(string.printable, max_size=20).filter(lambda odd: not re.match(r"\d+[/?#]", odd)))
def test_no_password_of_a_web_address_is_shown_whatever_is_in_it(odd: str) -> None:
    assert "SECRET" not in shown_url(f"http://user:{odd}SECRET@host/v1")


@pytest.mark.parametrize(
    "host", ["h", "h.", "my_service:8", "[::1]:8", "127.0.0.1:65535", "user:pw@h", "a" * 63 + ".b"]
)
def test_what_can_be_looked_up_is_a_web_address(host: str) -> None:
    assert WEB.validate_python(f"http://{host}/v1") == f"http://{host}/v1"


@pytest.mark.parametrize("host", ["", "h:0", "h:65536", "h:port", "[::1", "..h", "h..", "a" * 64, "b." + "ä" * 64])
def test_what_nobody_can_look_up_is_none(host: str) -> None:
    with pytest.raises(ValidationError, match="it is no web address"):
        WEB.validate_python(f"http://{host}/v1")
