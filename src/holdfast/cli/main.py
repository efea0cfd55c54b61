"""The ``holdfast`` command: joins the groups of commands, and turns errors into one line, a hint and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from holdfast import __version__
from holdfast.cli.output import Exit, exit_of, flush_output, print_error
from holdfast.errors import HoldfastError, InvalidRequest, Unavailable
from holdfast.extras import MissingExtra

if TYPE_CHECKING:
    import typer

EXTRAS: Final = {
    "serve": "server", "check-config": "server", "console": "console", "log": "server",
    "cluster": "server", "spark": "spark,client",
}  # fmt: skip
"""The extra that a command needs; all others need ``client``."""
SERVER_PACKAGES: Final = {
    "msgpack", "obstore", "prometheus_client", "pyarrow", "starlette", "structlog", "uvicorn", "uvloop",
}  # fmt: skip
"""Packages that are in the extra ``server`` only, and that some options of the other commands need."""

GROUPS: Final = {
    "log": ("Begin, inspect and copy logs on their stores.", ("log", "log_copies")),
    "cluster": ("Say whether anybody may lead a log, and see who does.", ("cluster",)),
    "retention": ("Say how much of the log stays. Without a policy everything does.", ("retention",)),
    "queue": ("Inspect an embedded queue, check it, repair it, free its space.", ("queue",)),
    "stores": (
        "Message stores of a service: define, publish, subscribe, maintain.",
        ("stores", "stores_files", "stores_messages"),
    ),
    "spark": ("Tables and files made of a log by Spark.", ("spark",)),
}
"""The help of each group of commands, and the modules that fill its ``commands``."""
SPARK_REFUSALS: Final = {"AnalysisException", "IllegalArgumentException", "ParseException"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if not __debug__:
        # Without its assertions a bug could be written into a log.
        sys.stderr.write("holdfast: will not run under python -O, which removes the checks of its own laws\n")
        return Exit.BAD_REQUEST
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        _print_version()  # without an extra, too
        return Exit.DONE
    as_json = "--json" in words
    _prepare_streams()
    code = _run(words, as_json=as_json)
    try:
        if not sys.stdout.closed:
            flush_output()
    except BrokenPipeError:
        pass
    except HoldfastError as error:
        print_error(error, as_json=as_json)
        code = exit_of(error) if code == Exit.DONE else code
    if arguments is None:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End a process that has used an object store in the cloud, with nothing left to do.

    The client's threads drop Python objects after their last answer. One that asks for the interpreter's lock while the
    interpreter is finalized ends the process with SIGABRT, so it is not finalized.
    """
    if "obstore" in sys.modules and "pyspark" not in sys.modules:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _print_version() -> None:
    sys.stdout.write(f"holdfast {__version__}\n")


def _prepare_streams() -> None:
    """Replace missing streams, and escape characters that stdout cannot encode.

    A closed standard descriptor is opened first. Otherwise a socket gets its number, and the event loop refuses to
    close a descriptor of that number: it aborts the process.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "the lowest free descriptor is the one that is closed"
            os.set_inheritable(number, True)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(words: list[str], *, as_json: bool) -> int:
    try:
        _command_line()(words, prog_name="holdfast")
    except HoldfastError as error:
        print_error(error, as_json=as_json)
        return exit_of(error)
    except BrokenPipeError:
        return Exit.DONE  # the reader of our output has left, as `head` does
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            # Typer has met it first, and would end with the code that here means "the answer is no".
            return Exit.DONE
        return end.code if isinstance(end.code, int) else Exit.DONE
    except Exception as error:  # noqa: BLE001 - whatever it is, the interpreter's own code 1 would say "the answer is no"
        return _surprise(error, words, as_json=as_json)
    return Exit.DONE


def _surprise(error: Exception, words: Sequence[str], *, as_json: bool) -> Exit:
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Arguments that are not UTF-8 arrive like this.
        print_error(InvalidRequest(f"{error.object!r} is not text"), as_json=as_json)
        return Exit.BAD_REQUEST
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != "holdfast":
        package = error.name.partition(".")[0]
        command = words[0] if words else ""
        extra = EXTRAS.get(command, "server" if package in SERVER_PACKAGES else "client")
        print_error(MissingExtra(extra, package), as_json=as_json)
        return Exit.BAD_REQUEST
    if type(error).__module__.startswith("pyspark."):
        raised = _error_of_spark(error)
        print_error(raised, as_json=as_json)
        return exit_of(raised)
    traceback.print_exception(error)
    sys.stderr.write("holdfast: this is a bug of ours: please report it\n")
    return Exit.INTERNAL


def _error_of_spark(error: Exception) -> HoldfastError:
    """Spark's exception as one of ours, by its name, because most commands do not load Spark."""
    lines = (line.strip() for line in str(error).splitlines())
    message = " ".join(line for line in lines if line and not line.startswith("at "))  # those are frames of the JVM
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("pyspark.")}
    if kinds & SPARK_REFUSALS:
        return InvalidRequest(f"Spark refused this: {message}")
    return Unavailable(f"Spark failed: {message}")


def application() -> typer.Typer:
    """All commands. Built when asked for, so that importing this module needs no third-party package."""
    import typer

    from holdfast.cli import processes, transactions
    from holdfast.cli.service import on_service

    app = typer.Typer(
        name="holdfast",
        help="Durability for application data: a transactional commit log on an object store.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def print_version(wanted: bool) -> None:
        if wanted:
            _print_version()
            raise typer.Exit

    @app.callback()
    def root(  # pyright: ignore[reportUnusedFunction]
        version: bool = typer.Option(
            False, "--version", help="Print the version and exit.", callback=print_version, is_eager=True
        ),
    ) -> None:
        """Durability for application data: a transactional commit log on an object store."""
        del version

    app.command()(processes.serve)
    app.command("check-config")(processes.check_config)
    app.command()(processes.doctor)
    app.command()(processes.console)
    for command in (
        transactions.commit, transactions.get, transactions.status, transactions.version, transactions.subscribe,
    ):  # fmt: skip
        on_service(app)(command)
    for name, (about, modules) in GROUPS.items():
        app.add_typer(_group(about, modules), name=name)
    app.command()(transactions.bench)
    return app


def _group(about: str, modules: Sequence[str]) -> typer.Typer:
    """A group of commands. Its modules are loaded when one of them is asked for: those of ``log`` need Arrow."""
    import typer
    from typer.core import TyperGroup

    @cache
    def loaded() -> TyperGroup:
        parts = [import_module(f"holdfast.cli.{module}") for module in modules]
        return typer.main.get_group(parts[0].commands)

    class CommandGroup(TyperGroup):
        @property
        def commands(self) -> Any:
            return loaded().commands

        @commands.setter
        def commands(self, _: object) -> None: ...

    return typer.Typer(cls=CommandGroup, help=about, no_args_is_help=True, rich_markup_mode=None)


@cache
def _command_line() -> Callable[..., object]:
    """The parser of all commands: making it takes longer than most commands, and one process may run many."""
    import typer

    return typer.main.get_command(application())


if __name__ == "__main__":
    sys.exit(main())
