"""Grouping of errors by kind, and lookup of a kind by its text."""

import msgspec
import pytest

from headway.core.failures import error_kind, error_text, is_meant
from headway.store.failures import HEAD


def stored(kind: str, message: str, traceback: str = "Traceback …\n" * 200) -> str:
    return msgspec.json.encode({"type": kind, "message": message, "traceback": traceback}).decode()


def kind_of(kind: str, message: str) -> str:
    return error_kind(error_text(stored(kind, message)[:HEAD], status="FAILED", reason=""))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("row 17 is bad", "OSError: row … is bad"),
        ("row 17.5 is bad\nand more", "OSError: row … is bad"),
        ("job_01m7h07rq30wjd03gjnmt8r3pz is gone", "OSError: … is gone"),
        ("4f1c2d3e-0000-4abc-8def-0123456789ab at 0x7F00aa", "OSError: … at …"),
        ("", "OSError: (no message)"),
        ("\n\n  late text", "OSError: late text"),
        ('a "quoted" back\\slash', 'OSError: a "quoted" back\\slash'),
        ("tab\tand \x1b[31mred\u202e", "OSError: tab and [ …mred".replace("[ …", "[…")),
        ("x" * 5_000, "OSError: " + "x" * 199 + "…"),
        ("é" * 700, "OSError: " + "é" * 199 + "…"),
        ('"' * 700, "OSError: " + '"' * 199 + "…"),
    ],
)
def test_errors_that_differ_only_in_numbers_and_ids_have_one_kind(message: str, kind: str) -> None:
    assert kind_of("OSError", message) == kind
    assert error_kind(kind) == kind  # The text that is shown finds the same kind.
    assert is_meant(kind, kind)
    assert is_meant(kind, "OSError")
    assert not is_meant(kind, "OSErro")


def test_kind_is_idempotent_for_any_text() -> None:
    for text in (
        "E1: x1ab_aaaaaaaaaaaaaaaaaaaaaaaa",
        "E: " + "ab1" * 400,
        "a: b: 17",
        "a 7: b",
        ": x",
        "E:x",
        "E: ",
        "…",
    ):
        assert error_kind(error_kind(text)) == error_kind(text)


def test_truncated_and_malformed_errors_have_a_kind() -> None:
    for cut in range(20, HEAD):  # Wherever the text is truncated, no escape sequence is split.
        text = error_text(stored("OSError", "\u0001\\" * 400)[:cut], status="FAILED", reason="")
        assert text.partition(":")[0] in ("OSError", "Error")
    assert error_text("not JSON", status="FAILED", reason="") == "Error: not JSON"
    assert error_text("[1]", status="FAILED", reason="") == "Error: [1]"
    assert error_text(None, status="TIMED_OUT", reason="out of time") == "TIMED_OUT: out of time"
    assert error_text(None, status="FAILED", reason=None) == "FAILED: no error was recorded"


def test_text_matches_only_its_own_kind() -> None:
    assert is_meant("OSError: row … is bad", "OSError: row 18 is bad")
    assert not is_meant("OSError: row … is bad and full", "OSError: row 18 is bad")
    assert not is_meant("ValueError: row … is bad", "OSError: row … is bad")
    assert not is_meant("OSErrorToo: row … is bad", "OSError")
