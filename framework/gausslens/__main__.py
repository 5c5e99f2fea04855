"""The command ``gausslens``, and ``python -m gausslens``."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence

from .contract.errors import GausslensError

_format_warning = warnings.formatwarning


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 the input is wrong, 130 interrupted."""
    from .command.line import parsed

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
        code = int(module.run(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        from .command import silence_stdout

        silence_stdout()
        return 1
    except BaseException as error:  # SystemExit too: only the parser may end the program
        return _explained(error, debug)
    return code


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as Python prints it; names in it cannot send the terminal anything."""
    from .command.printed import plain_lines

    return plain_lines(_format_warning(message, category, filename, lineno, line))


def _explained(error: BaseException, debug: bool) -> int:
    from .command.printed import plain_lines
    from .command.refused import refused

    if debug:
        import traceback

        print(plain_lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, GausslensError):
        print(plain_lines(error), file=sys.stderr)
        return error.code
    if isinstance(error, OSError) and (told := refused(error)) is not None:
        print(plain_lines(told[0]), file=sys.stderr)
        return told[1]
    hint = "" if debug else "; --debug shows where"
    what = plain_lines(f"{type(error).__name__}: {error}")
    print(f"gausslens met a defect of its own or of a plugin{hint}.\n{what}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
