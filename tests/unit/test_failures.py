"""Which errors are the same error, and which of them a text means."""

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
def test_errors_that_differ_in_numbers_and_ids_only_are_one(message: str, kind: str) -> None:
    assert kind_of("OSError", message) == kind
    assert error_kind(kind) == kind  # What is shown finds what it was shown for.
    assert is_meant(kind, kind)
    assert is_meant(kind, "OSError")
    assert not is_meant(kind, "OSErro")


def test_a_kind_of_a_kind_is_itself_whatever_it_was_made_of() -> None:
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


def test_errors_that_were_cut_or_are_no_errors_have_a_kind_too() -> None:
    for cut in range(20, HEAD):  # Wherever the beginning ends, an escape is never half read.
        text = error_text(stored("OSError", "\u0001\\" * 400)[:cut], status="FAILED", reason="")
        assert text.partition(":")[0] in ("OSError", "Error")
    assert error_text("not JSON", status="FAILED", reason="") == "Error: not JSON"
    assert error_text("[1]", status="FAILED", reason="") == "Error: [1]"
    assert error_text(None, status="TIMED_OUT", reason="out of time") == "TIMED_OUT: out of time"
    assert error_text(None, status="FAILED", reason=None) == "FAILED: no error was recorded"


def test_a_text_finds_its_own_kind_and_no_other() -> None:
    assert is_meant("OSError: row … is bad", "OSError: row 18 is bad")
    assert not is_meant("OSError: row … is bad and full", "OSError: row 18 is bad")
    assert not is_meant("ValueError: row … is bad", "OSError: row … is bad")
    assert not is_meant("OSErrorToo: row … is bad", "OSError")
