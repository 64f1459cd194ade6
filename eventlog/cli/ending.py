"""How a command ends: with an exit code, and with one line for an error; quietly when its reader has left."""

from __future__ import annotations

from collections.abc import Callable

from eventlog.cli import output
from eventlog.cli.explain import Code, explained


def guarded(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code, however it ends; no error and no closed pipe gets past this."""
    try:
        code = command() or Code.DONE
        if code != Code.INTERRUPTED:  # then its reader may be what it was waiting for
            output.out().flush()
            return code
    except (output.OutputClosed, BrokenPipeError):  # click writes by itself, as for --help
        code = Code.DONE
    except output.OutputFailed as error:
        output.note(f"the output cannot be written: {error}; make room, or write it elsewhere")
        code = Code.REFUSED
    except KeyboardInterrupt:
        code = Code.INTERRUPTED
    except Exception as error:
        code, message = explained(error)
        _flush_what_there_is()
        output.note(message.replace("\n", "; "))
        return code
    output.silence(output.out())
    return code


def _flush_what_there_is() -> None:
    """What was found before the error is shown before it."""
    try:
        output.out().flush()
    except (output.OutputClosed, output.OutputFailed):
        output.silence(output.out())
