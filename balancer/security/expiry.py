"""Until when the certificates of a PEM file are good."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping

from cryptography import x509

_SOON = datetime.timedelta(days=14)
_LAST_PART = 3
"""Certificates that live for days only are renewed, as a rule, when a third of their time is left."""


def expires_s(chain: bytes) -> float | None:
    """Unix time at which the first of a chain's certificates expires; None where that cannot be read."""
    try:
        return min(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(chain)).timestamp()
    except ValueError:
        return None


def trouble(pem: bytes, now: datetime.datetime, *, authorities: bool) -> tuple[bool, str]:
    """Whether the file is of no use at `now`, and what to say of its time, with a remedy; empty: nothing.

    All certificates of a chain must be valid. Of `authorities` one is enough: others may have been left in on purpose.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        return False, f"its certificates' time cannot be read ({error}); look at it with openssl x509 -enddate"
    choose = max if authorities else min
    first = choose(found, key=lambda each: each.not_valid_after_utc)
    since, until = first.not_valid_before_utc, first.not_valid_after_utc
    if until <= now:
        return True, f"expired on {_text(until)}; renew it"
    if since > now:
        return True, f"is valid from {_text(since)} on only; wait, or set this machine's clock"
    if until - now < min(_SOON, (until - since) / _LAST_PART):
        return False, f"expires on {_text(until)}; renew it"
    return False, ""


def troubles(
    section: str, files: Mapping[str, str], contents: Mapping[str, bytes], now: datetime.datetime
) -> Iterator[tuple[bool, str, str]]:
    """What to say of the time of the certificates in `files` of a section of the config, by field: whether the file is
    of no use at `now`, its dotted field, and the words, with a remedy.
    """
    for field, file in files.items():
        if field == "key_file":
            continue
        useless, what = trouble(contents[field], now, authorities=field.endswith("ca_file"))
        if what:
            yield useless, f"{section}.{field}", f"{file} {what}"


def _text(when: datetime.datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
