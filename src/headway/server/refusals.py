"""Refusals: one table from exceptions to HTTP statuses."""

from collections.abc import Mapping
from typing import Final

from headway.core.errors import (
    BatchClosed,
    BatchNotFound,
    Conflict,
    DefinitionError,
    Denied,
    DuplicateKey,
    HeadwayError,
    InvalidLimit,
    LeaseLost,
    NotFound,
    RequestTooLarge,
    ScheduleChanged,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TaskNotFound,
)


class Refused(HeadwayError):
    """The request is refused; `status`, `code` and the message say why, `hint` says what to do instead."""

    def __init__(
        self, status: int, code: str, message: str, hint: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.hint = hint
        self.headers = dict(headers or {})


# From exception to response; the first match counts. Any other exception is an internal error.
_ANSWERS: Final[tuple[tuple[type[HeadwayError], int, str, Mapping[str, str]], ...]] = (
    (TaskNotFound, 404, "unknown_task", {}),
    (BatchNotFound, 404, "unknown_batch", {}),
    (NotFound, 404, "not_found", {}),
    (Denied, 403, "forbidden", {}),
    (ScheduleChanged, 412, "changed", {}),
    (DuplicateKey, 409, "duplicate_key", {}),
    (BatchClosed, 409, "batch_closed", {}),
    (Conflict, 409, "conflict", {}),
    (RequestTooLarge, 422, "too_much", {}),
    (InvalidLimit, 422, "invalid_limit", {}),
    (DefinitionError, 422, "invalid", {}),
    (LeaseLost, 409, "lease_lost", {}),
    (StoreFull, 507, "store_full", {"Retry-After": "30"}),
    (StoreReadOnly, 503, "store_read_only", {"Retry-After": "5"}),
    (StoreUnavailable, 503, "store_unavailable", {"Retry-After": "1"}),
    (SchemaMismatch, 503, "schema_mismatch", {"Retry-After": "30"}),
)
# Public messages for these; their own messages may contain host names.
_PUBLIC_WORDS: Final = {
    "store_full": "the store is full and nothing was written; an operator has to free space on its disk",
    "store_read_only": (
        "the store is read-only and nothing was written; reads work; writes work again when an operator has ended that,"
        " or the fail-over is over"
    ),
    "store_unavailable": "the store does not answer and the outcome is unknown: repeat the request with the same key",
    "schema_mismatch": "the database has another schema than this program; an operator has to run `headway migrate`",
}


def refusal_of(error: HeadwayError) -> Refused | None:
    """Return the refusal for an exception; None if it is a bug of ours."""
    if isinstance(error, Refused):
        return error
    for kind, status, code, headers in _ANSWERS:
        if isinstance(error, kind):
            return Refused(status, code, _PUBLIC_WORDS.get(code, str(error)), headers=headers)
    return None
