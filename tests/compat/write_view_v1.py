"""Write the golden files of view format 1, by the code that wrote that format: ``python write_view_v1.py FOLDER``.

Not run by any test: a view's file of format 1 has no log id, and later code writes format 2.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast import Write
from holdfast.view import View


def main(folder: Path) -> None:
    with View.sqlite(folder / "view.sqlite") as view:
        view.apply_many([(100_000_001, [Write(b"a", b"1"), Write(b"b", b"2")])], prev_version=0)
        view.apply_many([(100_000_007, [Write(b"b", b"3")])], prev_version=100_000_001)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
