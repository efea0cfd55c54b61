"""The error for a part of the package whose extra is not installed, and the command that installs it.

Standard library only.
"""

from __future__ import annotations

from holdfast.errors import Code, InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Final

__version__: Final = "0.1.0"
DISTRIBUTION = "holdfastdb"
"""The name on the package index. There, ``holdfast`` is another project."""


def install_command(extra: str) -> str:
    """What installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class MissingExtra(InvalidRequest, ModuleNotFoundError):
    """A part of the package needs packages that are not installed; ``hint`` is the command that installs them."""

    default_code = Code.BAD_CONFIGURATION

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(
            "this part of holdfast needs a package that is not installed", hint=install_command(extra), package=package
        )
        self.extra = extra
        self.name = package

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[object, ...], dict[str, object]]:
        """Made by its own arguments in the process that unpickles it."""
        return type(self), (self.extra, self.fields["package"]), self.__dict__


class needs:  # noqa: N801  used as a function
    """A block of imports that needs an extra. Raises: MissingExtra where a package of others is not installed.

    >>> with needs("server"):
    ...     import no_such_package
    Traceback (most recent call last):
    holdfast.extras.MissingExtra: this part of holdfast needs a package that is not installed package=no_such_package; \
pip install 'holdfastdb[server]'
    """

    __slots__ = ("_extra",)

    def __init__(self, extra: str) -> None:
        self._extra = extra

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ModuleNotFoundError) and not isinstance(error, MissingExtra) and error.name:
            package = error.name.partition(".")[0]
            if package not in ("holdfast", "pyspark_holdfast"):
                raise MissingExtra(self._extra, package) from error
