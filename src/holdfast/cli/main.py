"""The ``holdfast`` command.

Owns: joining the groups of commands, and turning errors into a clear line and an exit code. Does not own: the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit, exit_of
from holdfast.cli.output import print_error
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    import typer

__all__ = ["main"]

MISSING_EXTRA = (
    "holdfast: the command line needs the package {name}\n"
    "  hint: pip install 'holdfast[client]', or 'holdfast[server]' to run a service\n"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. The answer is the exit code; nothing is raised but ``SystemExit`` by usage errors."""
    if not __debug__:
        # Broken laws of our own are found by `assert`. Without them a bug would be written into a log.
        sys.stderr.write("holdfast: will not run under python -O, which removes the checks of its own laws\n")
        return Exit.BAD_REQUEST
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        application()(words, prog_name="holdfast")
    except HoldfastError as error:
        print_error(error, as_json="--json" in words)
        return exit_of(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "holdfast":
            raise
        sys.stderr.write(MISSING_EXTRA.format(name=error.name))
        return Exit.BAD_REQUEST
    except BrokenPipeError:
        # The reader of our output has left, as `head` does. Without this the interpreter complains at exit.
        sys.stderr.close()
        return Exit.DONE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            # Typer has met it first, and would end with the code that here means "the answer is no".
            return Exit.DONE
        return end.code if isinstance(end.code, int) else Exit.DONE
    return Exit.DONE


def application() -> typer.Typer:
    """All commands. Built when asked for, so that importing this module needs no third-party package."""
    import typer

    from holdfast.cli import (
        bench,
        check_config,
        log,
        queue,
        serve,
        spark_bulk,
        stores,
        stores_files,
        stores_messages,
        subscribe,
        transactions,
    )

    app = typer.Typer(
        name="holdfast",
        help="Durability for application data: a transactional commit log on an object store.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    app.command()(serve.serve)
    app.command("check-config")(check_config.check_config)
    app.command()(transactions.commit)
    app.command()(transactions.get)
    app.command()(transactions.status)
    app.command()(transactions.version)
    app.command()(subscribe.subscribe)
    app.add_typer(log.commands, name="log")
    app.add_typer(queue.commands, name="queue")
    assert stores_files.commands is stores_messages.commands is stores.commands, "three modules fill one group"
    app.add_typer(stores.commands, name="stores")
    app.add_typer(spark_bulk.commands, name="spark")
    app.command()(bench.bench)
    return app


def root() -> None:
    """Durability for application data: a transactional commit log on an object store."""


if __name__ == "__main__":
    sys.exit(main())
