"""`mosaic doctor`: what is wrong between agent, engine, database and trainer, why it matters, and what to do about it.

A check is a function that takes a `Subject` and yields findings; `checks.CHECKS` lists them all. Nothing is changed by
looking: what is written to see whether it can be is taken back.
"""

from proxy.doctor.checks import findings
from proxy.doctor.command import doctor
from proxy.doctor.finding import Finding, Level
from proxy.doctor.latest import Latest

__all__ = ["Finding", "Latest", "Level", "doctor", "findings"]
