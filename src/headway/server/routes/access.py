"""The routes of tokens, of the trail, and of who one is.

An admin of one tenant makes, sees and revokes tokens of that tenant only, and sees what was done in it; one of all
tenants does so everywhere. A token's value is in one answer, the one that makes it, and nowhere else.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from headway.core.instants import parse_duration
from headway.core.validation import NAME_LENGTH_MAX
from headway.server.web import CURSOR, LIMIT, Answer, Call, Param, Refused, Route
from headway.wire.shapes import action_shape, token_shape

_SEQ_DIGITS_MAX: Final = 18


class NewToken(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a new token may do, and for how long."""

    name: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX, description="who or what will use it", examples=["ci"]),
    ]
    role: Annotated[
        Literal["viewer", "operator", "admin"], msgspec.Meta(description="each may what the lower ones may")
    ]
    tenant: (
        Annotated[
            str,
            msgspec.Meta(
                min_length=1,
                max_length=NAME_LENGTH_MAX,
                description="whose things it may see and change, `*` for all; without it as the caller's own token",
                examples=["acme"],
            ),
        ]
        | None
    ) = None
    expires_in: (
        Annotated[
            str,
            msgspec.Meta(min_length=2, max_length=64, description="how long it counts; without it until it is revoked"),
        ]
        | None
    ) = None


async def list_tokens(call: Call) -> Answer:
    """List tokens, the newest first."""
    limit, before = call.page()
    found = await call.store.access.tokens(tenant=call.tenant, before=before, limit=limit)
    following = found[-1].id if len(found) == limit else None
    return Answer({"items": [token_shape(token) for token in found], "next_cursor": following})


async def create_token(call: Call) -> Answer:
    """Make a token and show its value, this once."""
    given = await call.body(NewToken)
    tenant = call.principal.tenant if given.tenant is None else given.tenant
    if not call.principal.sees(tenant):
        raise Refused(403, "forbidden", "tenant: your token is for another tenant and can make none for this one")
    token, value = await call.store.access.create_token(
        name=given.name,
        tenant=tenant,
        role=given.role,
        lifetime=None if given.expires_in is None else parse_duration(given.expires_in, what="expires_in"),
        actor=call.principal.name,
        origin=call.origin,
    )
    return Answer({**token_shape(token), "token": value}, status=201, headers={"Location": f"/api/tokens/{token.id}"})


async def revoke_token(call: Call) -> Answer:
    """Revoke a token."""
    token = await call.store.access.revoke_token(
        call.path("id"), tenant=call.tenant, actor=call.principal.name, origin=call.origin
    )
    return Answer(token_shape(token))


async def read_trail(call: Call) -> Answer:
    """Read what people did, the newest first."""
    limit, cursor = call.page()
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _SEQ_DIGITS_MAX):
        raise Refused(422, "invalid", "cursor must be the `next_cursor` of the page before")
    query = call.query
    found = await call.store.access.actions(
        tenant=call.tenant,
        actor=query.get("actor"),
        action=query.get("action"),
        target=query.get("target"),
        since=query.get("since"),
        until=query.get("until"),
        before=None if cursor is None else int(cursor),
        limit=limit,
    )
    following = str(found[-1].seq) if len(found) == limit else None
    return Answer({"items": [action_shape(action) for action in found], "next_cursor": following})


async def who_am_i(call: Call) -> Answer:
    """Say who the caller is, and what it may."""
    who = call.principal
    return Answer({"name": who.name, "tenant": who.tenant, "role": who.role, "token_id": who.token_id})


_TOKEN: Final[dict[str, Any]] = {
    "id": "tok_01m7h07rq30wjd03gjnmt8r3pz",
    "name": "ci",
    "tenant": "acme",
    "role": "operator",
    "state": "valid",
    "created_at": "2027-01-31T06:00:00Z",
    "created_by": "ada",
    "expires_at": "2027-05-01T06:00:00Z",
    "revoked_at": None,
}
_ACTION: Final[dict[str, Any]] = {
    "at": "2027-01-31T06:00:00Z",
    "actor": "ada",
    "tenant": "acme",
    "origin": "192.0.2.7",
    "action": "tokens.create",
    "target": "tok_01m7h07rq30wjd03gjnmt8r3pz",
    "detail": {"name": "ci", "tenant": "acme", "role": "operator"},
}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/api/me",
        handler=who_am_i,
        role="viewer",
        summary="Who am I?",
        what="The name, tenant and role of the token that came with the request.",
        tag="access",
        answers={200: {"name": "ci", "tenant": "acme", "role": "operator", "token_id": _TOKEN["id"]}},
    ),
    Route(
        method="GET",
        path="/api/tokens",
        handler=list_tokens,
        role="admin",
        summary="List tokens",
        what="Their values are not kept, so they cannot be shown.",
        tag="access",
        query=(LIMIT, CURSOR),
        answers={200: {"items": [_TOKEN], "next_cursor": None}},
    ),
    Route(
        method="POST",
        path="/api/tokens",
        handler=create_token,
        role="admin",
        summary="Make a token",
        what="The answer has its value, this once: only a hash of it is kept. The first token ends access without one.",
        tag="access",
        body=NewToken,
        body_example={"name": "ci", "role": "operator", "tenant": "acme", "expires_in": "90d"},
        answers={201: {**_TOKEN, "token": "hw_…"}},
    ),
    Route(
        method="DELETE",
        path="/api/tokens/{id}",
        handler=revoke_token,
        role="admin",
        summary="Revoke a token",
        what="It is refused within five seconds, also on streams that are open. To revoke it again changes nothing.",
        tag="access",
        answers={200: {**_TOKEN, "state": "revoked", "revoked_at": "2027-02-01T12:00:00Z"}},
    ),
    Route(
        method="GET",
        path="/api/trail",
        handler=read_trail,
        role="admin",
        summary="Read what people did",
        what="Every action of an operator or admin, the newest first. The database refuses to change or delete a line.",
        tag="access",
        query=(
            Param("actor", "only of this one", example="ada"),
            Param("action", "only this kind", example="tokens.create"),
            Param("target", "only what was done to this", example=_TOKEN["id"]),
            Param("since", "only from this time on", "instant", example="2027-01-31T00:00:00Z"),
            Param("until", "only before this time", "instant", example="2027-02-01T00:00:00Z"),
            LIMIT,
            CURSOR,
        ),
        answers={200: {"items": [_ACTION], "next_cursor": None}},
    ),
)
