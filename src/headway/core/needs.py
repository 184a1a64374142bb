"""What a job needs of a worker, and what a worker offers: amounts such as cpu, labels, a version of the code.

The needs of a job are one canonical text, such as `cpu=2 memory=4294967296 zone:eu @1.4`. Equal needs have equal texts,
so a queue is divided into classes by them, and an index finds each class. A job without needs has the empty text.

Amounts are whole thousandths of their unit, so that sums are exact: half a core is 500.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import msgspec

from headway.core.errors import DefinitionError, InvalidTask
from headway.core.instants import quote

NAMES_MAX: Final = 16  # Amounts or labels of one job, or of one worker.
NEEDS_LENGTH_MAX: Final = 400  # Of the canonical text: it is in an index.
AMOUNT_MAX: Final = 10**15
_POWERS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# `4G`, `4GB` and `4GiB` are the same.
UNITS: Final = {"": 1, "B": 1, **{unit + end: size for unit, size in _POWERS.items() for end in ("", "B", "IB")}}
_SCALE: Final = 1_000
_NAME: Final = re.compile(r"[a-z][a-z0-9._/-]{0,39}")
_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:+-]{0,79}")
_AMOUNT: Final = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,16})?)\s*([A-Za-z]{0,3})")
_SHOWN_FROM: Final = UNITS["M"] * _SCALE  # Smaller amounts are shown without a unit.

Amounts = dict[str, int]


def parse_amount(value: object, what: str) -> int:
    """Read an amount such as 2, 0.5 or `4G`, in thousandths; raise `InvalidTask` with the reason and the cure."""
    match = _AMOUNT.fullmatch(_text_of(value))
    unit = "" if match is None else match[2]
    if match is None or unit.upper() not in UNITS or unit == "m":
        cure = "; for a thousandth write 0.001, for mebibytes M" if unit == "m" else ""
        raise InvalidTask(
            f"{what} must be a positive number such as 2, 0.5 or 4G (K, M, G, T), not {quote(value)}{cure}"
        )
    scaled = Decimal(match[1]) * UNITS[unit.upper()] * _SCALE
    if not 0 < scaled <= AMOUNT_MAX * _SCALE:
        cure = "; leave it out if there is none" if scaled == 0 else ""
        raise InvalidTask(f"{what} must be more than 0 and at most 10^15, not {quote(value)}{cure}")
    if scaled != int(scaled):
        raise InvalidTask(f"{what} must have at most three decimals, not {quote(value)}")
    return int(scaled)


def _text_of(value: object) -> str:
    """Write a number as text; what is neither becomes a text that is no amount."""
    if isinstance(value, str):
        return value.strip()
    is_amount = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 10 * AMOUNT_MAX
    return str(value) if is_amount else ""


def amount_number(amount: int) -> int | float:
    """Return an amount as a number."""
    return amount // _SCALE if amount % _SCALE == 0 else amount / _SCALE


def _amount_text(amount: int) -> str:
    whole, rest = divmod(amount, _SCALE)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def amount_words(amount: int) -> str:
    """Write an amount for people: large ones with the unit that divides them, such as 4G."""
    if amount >= _SHOWN_FROM:
        for unit in ("T", "G", "M"):
            count, rest = divmod(amount, UNITS[unit] * _SCALE)
            if rest == 0:
                return f"{count}{unit}"
    return _amount_text(amount)


def read_amounts(given: object, what: str) -> Amounts:
    """Read amounts by name from an object, or from a text such as `cpu=2,memory=4G`."""
    pairs = _pairs(given, what, "cpu=2,memory=4G")
    return {_name(name, what): parse_amount(value, f"{what}: {name}") for name, value in sorted(pairs.items())}


def read_labels(given: object, what: str) -> dict[str, str]:
    """Read labels by name from an object, or from a text such as `zone=eu,disk=ssd`."""
    pairs = _pairs(given, what, "zone=eu,disk=ssd")
    return {_name(name, what): _value(value, f"{what}: {name}") for name, value in sorted(pairs.items())}


def read_version(value: object, what: str) -> str:
    """Read the version of an app's code, such as `1.4.2` or a commit."""
    return _value(value, what)


def _pairs(given: object, what: str, sample: str) -> dict[str, object]:
    if isinstance(given, str):
        parts = [part.strip().partition("=") for part in given.split(",") if part.strip()]
        if not all(name and equals for name, equals, _ in parts) or len({name for name, _, _ in parts}) < len(parts):
            raise InvalidTask(f"{what} must be written as {sample}, each name once, not {quote(given)}")
        given = {name.strip(): value.strip() for name, _, value in parts}
    if not isinstance(given, Mapping):
        raise InvalidTask(f"{what} must be names with values, such as {sample}, not {quote(given)}")
    if len(given) > NAMES_MAX:
        raise InvalidTask(f"{what} must have at most {NAMES_MAX} names, not {len(given)}")
    for name in given:
        _name(name, what)
    return dict(given)


def _name(name: object, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidTask(
            f"{what}: a name has lower-case letters, digits and . _ / - and begins with a letter, not {quote(name)}"
        )
    return name


def _value(value: object, what: str) -> str:
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise InvalidTask(f"{what} must be a text of up to 80 letters, digits and . _ / : + - not {quote(value)}")
    return value


class Needs(msgspec.Struct, frozen=True):
    """What a job needs: amounts of what a worker offers, its labels, and the version of its code."""

    amounts: Amounts = {}
    labels: dict[str, str] = {}
    version: str | None = None

    @property
    def text(self) -> str:
        """The canonical text; empty if nothing is needed."""
        parts = [f"{name}={_amount_text(amount)}" for name, amount in sorted(self.amounts.items())]
        parts += [f"{name}:{value}" for name, value in sorted(self.labels.items())]
        return " ".join(parts if self.version is None else [*parts, f"@{self.version}"])

    def parts(self) -> list[str]:
        """Return each need in words: `cpu=2`, `zone=eu`, `version 1.4`."""
        parts = [f"{name}={amount_words(amount)}" for name, amount in sorted(self.amounts.items())]
        parts += [f"{name}={value}" for name, value in sorted(self.labels.items())]
        return parts if self.version is None else [*parts, f"version {self.version}"]


def needs_text(amounts: Amounts, labels: Mapping[str, str], version: str | None = None) -> str:
    """Return the canonical text of needs; raise `InvalidTask` if it is too long for the index."""
    text = Needs(amounts, dict(labels), version).text
    if len(text) > NEEDS_LENGTH_MAX:
        raise InvalidTask(f"needs, labels and version must together have at most {NEEDS_LENGTH_MAX} characters")
    return text


@lru_cache(4_096)
def parse_needs(text: str) -> Needs | None:
    """Read a canonical text; None if it is none, as nobody can tell what such a job needs."""
    amounts: Amounts = {}
    labels: dict[str, str] = {}
    version = None
    try:
        for part in text.split():
            name, separator, value = _split(part)
            if separator == "=":
                amounts[_name(name, "needs")] = parse_amount(value, "needs")
            elif separator == ":":
                labels[_name(name, "labels")] = _value(value, "labels")
            else:
                version = _value(value, "version")
    except DefinitionError:
        return None
    found = Needs(amounts, labels, version)
    return found if found.text == text else None


def _split(part: str) -> tuple[str, str, str]:
    if part.startswith("@"):
        return "", "@", part[1:]
    match = re.match(r"[^=:]*", part)
    end = 0 if match is None else match.end()
    return part[:end], part[end : end + 1], part[end + 1 :]


class Offer(msgspec.Struct, frozen=True):
    """What a worker offers: amounts, labels, and the version of its code."""

    amounts: Amounts = {}
    labels: dict[str, str] = {}
    version: str | None = None

    def __bool__(self) -> bool:
        return bool(self.amounts or self.labels or self.version)

    def covers(self, needs: Needs | None) -> bool:
        """Return whether a job with these needs can run here when nothing else does."""
        return (
            needs is not None
            and all(self.amounts.get(name, 0) >= amount for name, amount in needs.amounts.items())
            and all(self.labels.get(name) == value for name, value in needs.labels.items())
            and needs.version in (None, self.version)
        )

    @classmethod
    def read(cls, amounts: object, labels: object, version: object) -> "Offer":
        """Read what another process says that it offers; what cannot be read counts as not offered."""
        try:
            return cls(
                read_amounts(amounts or {}, "offer"),
                read_labels(labels or {}, "labels"),
                None if version is None else read_version(version, "version"),
            )
        except DefinitionError:
            return cls()


def times(needs: Needs, free: Mapping[str, int], most: int) -> int:
    """Return how many jobs with these needs fit into what is free, at most so many."""
    return max(0, min([most, *(free.get(name, 0) // amount for name, amount in needs.amounts.items())]))


def missing_words(needs: Needs, offers: Sequence[Offer], *, says_most: bool = True) -> str | None:
    """Name what none of these workers offers; None if one of them offers all of it."""
    if needs == Needs() or any(offer.covers(needs) for offer in offers):
        return None
    missing = [*_missing_amounts(needs, offers, says_most=says_most), *_missing_texts(needs, offers)]
    if not missing:
        missing = [f"{_listed(needs.parts())} of one worker, no worker offers all of it"]
    return "needs " + "; ".join(missing)


def _missing_amounts(needs: Needs, offers: Sequence[Offer], *, says_most: bool) -> Iterable[str]:
    for name, amount in sorted(needs.amounts.items()):
        most = max((offer.amounts.get(name, 0) for offer in offers), default=0)
        if most == 0:
            yield f"{name}={amount_words(amount)}, nobody offers it"
        elif most < amount:
            rest = f"the most that a worker offers is {amount_words(most)}" if says_most else "nobody offers so much"
            yield f"{name}={amount_words(amount)}, {rest}"


def _missing_texts(needs: Needs, offers: Sequence[Offer]) -> Iterable[str]:
    for name, value in sorted(needs.labels.items()):
        if not any(offer.labels.get(name) == value for offer in offers):
            yield f"the label {name}={value}, no worker has it"
    if needs.version is not None and not any(offer.version == needs.version for offer in offers):
        yield f"version {needs.version}, no worker runs it"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def numbers(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Return amounts as JSON shows them."""
    return {name: amount_number(amount) for name, amount in sorted(amounts.items())}


def shown_needs(text: str) -> tuple[dict[str, Any], dict[str, str], str | None]:
    """Return amounts, labels and version of a canonical text as JSON shows them."""
    needs = parse_needs(text) or Needs()
    return numbers(needs.amounts), dict(needs.labels), needs.version
