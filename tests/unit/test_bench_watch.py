"""Measuring processes from outside works while they start and exit."""

import os
import subprocess

from bench.watch import Bystanders, family

SHORT_LIVED = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); (true | true) & done; wait"


def test_processes_may_exit_while_they_are_counted() -> None:
    with subprocess.Popen(["/bin/sh", "-c", SHORT_LIVED]) as shell:
        bystanders = Bystanders()
        while shell.poll() is None:
            assert os.getpid() in family(os.getpid())
            assert bystanders.share() >= 0


def test_exited_process_has_no_family() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    assert family(process.pid) == []
