"""The SEAL of every closed page, checked against the page.

``holdfast queue verify`` and the index's checksum rely on it. A crash may take a SEAL, and reading works without it, so
this holds only for a log that has had no crash.
"""

from __future__ import annotations

from itertools import pairwise

from tests.worlds.harness import PromiseBroken
from tests.worlds.queue.files import CrashFiles

from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import seal_fields
from holdfast.queue.log.page_scan import PageScan

__all__ = ["check_seals"]


def check_seals(files: CrashFiles, path: str, prefix: str) -> None:
    """Hold every page before another that was begun to its SEAL: frames, last sequence number, last arrival.

    Raises: ``PromiseBroken``.
    """
    directory = files.open_directory(path)
    pages = PageDirectory(files, directory, FileNames(prefix))
    try:
        headers = [header for number in pages.numbers() if (header := pages.header_of(number)) is not None]
        for header, following in pairwise(header for header in headers if not header.prepared):
            file = pages.open(header.number)
            assert file is not None, "a page with a header has a file"
            scan = PageScan(files, file, header, next_seq=header.base_seq)
            while scan.read() is not None:
                pass
            files.close(file)
            if scan.seal is None:
                raise PromiseBroken(f"page {header.number} was closed without a SEAL")
            frames, last_seq, last_time_ns, _ = seal_fields(scan.seal)
            if (frames, last_seq, last_time_ns) != (scan.frames, following.base_seq - 1, scan.last_time_ns):
                raise PromiseBroken(f"the SEAL of page {header.number} says {last_seq}, {frames} frames")
    finally:
        files.close(directory)
