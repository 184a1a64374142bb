"""Every error has an exit code and a name, and is printed as one line without a traceback."""

import inspect
import json

import pytest

from headway.cli import root
from headway.core import errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.HeadwayError)]

CODES = {
    errors.InvalidSchedule: 2,
    errors.InvalidTask: 2,
    errors.InvalidConfig: 2,
    errors.TaskNotFound: 3,
    errors.ScheduleNotFound: 3,
    errors.JobNotFound: 3,
    errors.ScheduleOwned: 4,
    errors.ScheduleChanged: 2,
    errors.AlreadyFinal: 2,
    errors.DuplicateKey: 2,
    errors.StoreUnavailable: 5,
    errors.StoreFull: 5,
    errors.SchemaMismatch: 5,
    errors.LockHeld: 75,
    errors.LeaseLost: 76,
    TimeoutError: 6,
    KeyboardInterrupt: 130,
}


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_exit_codes(kind: type[BaseException], code: int) -> None:
    assert root.classify(kind())[0] == code


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_headway_error_has_an_exit_code_and_a_name(kind: type[errors.HeadwayError]) -> None:
    code, name, message = root.classify(kind())
    assert code in {1, 2, 3, 4, 5, 75, 76}
    assert name.replace("_", "").isalpha()
    assert name.islower()
    assert message


def test_error_is_one_clean_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.report(errors.InvalidTask("bad\nname \x1b[31m\u202e"), as_json=False) == 2
    assert capsys.readouterr().err == "headway: bad name \\x1b[31m\\u202e\n"


def test_json_error_is_one_object_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.report(errors.ScheduleNotFound("no schedule is named 'x'"), as_json=True) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err) == {"error": {"code": "schedule_not_found", "message": "no schedule is named 'x'"}}


def test_error_of_a_loop_is_found_in_its_exception_group(capsys: pytest.CaptureFixture[str]) -> None:
    group = BaseExceptionGroup("loops", [ExceptionGroup("inner", [errors.SchemaMismatch("too old")])])
    assert root.report(group, as_json=False) == 5
    assert capsys.readouterr().err == "headway: too old\n"


def test_bug_prints_a_traceback_only_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down() -> None:
        raise KeyError("x")

    assert root.guarded(break_down, as_json=False) == root.BUG
    assert capsys.readouterr().err == "headway: internal error: KeyError: 'x' (HEADWAY_DEBUG=1 shows where)\n"
    monkeypatch.setenv("HEADWAY_DEBUG", "1")
    with pytest.raises(KeyError):
        root.guarded(break_down, as_json=False)


def test_every_listed_command_exists() -> None:
    group = root.LazyGroup(name="headway")
    for name in root.COMMANDS:
        assert group.get_command(None, name).name == name
