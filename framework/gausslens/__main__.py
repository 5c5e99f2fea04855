"""The command ``gausslens``, and ``python -m gausslens``."""

from __future__ import annotations

import errno
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
    # `python -m` looks for every module where it is started: for a yaml.py that lies there, and for plugins.
    del sys.path[0]

from .contract.errors import GausslensError, advice_for
from .guard import watched_interrupts

_format_warning = warnings.formatwarning
# What the user named cannot be: the input is wrong, exit code 2. Else it could be, and does not work now: 1.
_CANNOT_BE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 the input is wrong, 130 interrupted (143, 129)."""
    from .command_line import parsed

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started it: what is said goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character gets its number instead
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _warning
    # Or pydantic reads the metadata of every distribution once more, for plugins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # A start makes much and drops little: looking for garbage as often as Python does costs a twentieth of it.
    gc.set_threshold(20_000)
    debug = False
    try:
        try:
            module, arguments = parsed(sys.argv[1:] if argv is None else argv)
        except SystemExit as stop:
            return int(stop.code or 0)
        debug = arguments.debug
        with watched_interrupts():
            code = int(module.run(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt as stopped:
        with suppress(OSError):  # after SIGHUP there may be no terminal any more
            print("; ".join(["interrupted", *getattr(stopped, "__notes__", ())]), file=sys.stderr)
        return 128 + getattr(stopped, "number", 2)
    except BrokenPipeError:
        from .command import silence_stdout

        silence_stdout()
        return 1
    except BaseException as error:  # SystemExit too: only the parser may end the program
        return _failed(error, debug)
    return code


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as Python prints it; names in it cannot send the terminal anything."""
    from .terminal import plain_lines

    return plain_lines(_format_warning(message, category, filename, lineno, line))


def _failed(error: BaseException, debug: bool) -> int:
    """Print why a command failed; return the exit code."""
    from .terminal import plain_lines

    if debug:
        import traceback

        print(plain_lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, GausslensError):
        print(plain_lines(error), file=sys.stderr)
        return error.code
    if isinstance(error, OSError) and (refused := _refused(error)) is not None:
        line, code = refused
        print(plain_lines(line), file=sys.stderr)
        return code
    hint = "" if debug else "; --debug shows where"
    what = plain_lines(f"{type(error).__name__}: {error}")
    print(f"gausslens met a defect of its own or of a plugin{hint}.\n{what}", file=sys.stderr)
    return 1


def _refused(error: OSError) -> tuple[str, int] | None:
    """An error of the system as one line that names the path, and the exit code; None where it is a defect.

    It is one where no path is named, the path is of this package itself, or the reason is not for users to change.
    Only a full disk needs no path: what is printed may go to one.
    """
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write: {advice_for(error)}", 1
    if not isinstance(error.filename, str | bytes):
        return None
    from pathlib import Path

    path = os.fsdecode(error.filename)
    advice = advice_for(error)
    if advice is None or Path(__file__).parent in Path(path).parents:
        return None
    return f"cannot read or write {path}: {advice}", 2 if error.errno in _CANNOT_BE else 1


if __name__ == "__main__":
    sys.exit(main())
