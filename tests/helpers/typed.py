"""Run a command inside the test process. `call` raises its errors; `run` prints them, as a shell would show them."""

import contextlib
import io
import os
import sys
from typing import NamedTuple
from unittest import mock

from typer.testing import CliRunner

from bitmosaic.cli import app, main


def call(*arguments):
    """The output of a command that succeeds. Its errors are raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


class Done(NamedTuple):
    """The result of a command, with the names of subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments, cwd=".", fails=False):
    """Run `bitmosaic` with these arguments in the folder `cwd`."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", "strict") for _ in range(2))
    argv = mock.patch.object(
        sys, "argv", ["bitmosaic", *(os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in arguments)]
    )
    streams = contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors)
    code = 0
    with contextlib.chdir(cwd), mock.patch.dict("os.environ"), argv, streams[0], streams[1]:
        try:
            main()
        except SystemExit as exit:
            code = exit.code or 0
    for stream in (output, errors):
        stream.flush()
    done = Done(code, *(stream.buffer.getvalue().decode() for stream in (output, errors)))
    assert (done.returncode != 0) == fails, done.stderr
    return done
