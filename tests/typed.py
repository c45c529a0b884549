"""A command as it is typed: what it prints, or the error that it would tell."""

from typer.testing import CliRunner

from bitmosaic.cli import app


def call(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output
