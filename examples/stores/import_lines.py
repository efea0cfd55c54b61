"""Import a file into a store so that each line is kept exactly once, however often this is run or killed.

    holdfast serve --log file:$PWD/log --init &
    python -m examples.stores.import_lines lines.txt [--url URL]

URL is the address of the service, with standbys all addresses with commas. A service with tokens needs HOLDFAST_TOKEN.

The publisher's id is the file's name, and the number of a message is that of its line. The store confirms a number that
it has already without keeping the line again, so a program that does not know how far it came just starts over.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from holdfast import StoreClient
from holdfast.client.stores import Message

BATCH = 100


def import_lines(client: StoreClient, file: Path, store: str) -> tuple[int, int]:
    """How many lines the file has, and how many of them were there already."""
    lines = duplicates = 0
    batch: list[Message] = []
    with client.publisher(store, publisher_id=file.name, next_seq=1) as publisher, file.open("rb") as source:
        for line in source:
            batch.append(Message(line.rstrip(b"\n")))
            lines += 1
            if len(batch) == BATCH:
                duplicates += publisher.publish_batch(batch).duplicates
                batch = []
        if batch:
            duplicates += publisher.publish_batch(batch).duplicates
    return lines, duplicates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--store", default="lines")
    arguments = parser.parse_args()
    with StoreClient(arguments.url, token=os.environ.get("HOLDFAST_TOKEN")) as client:
        client.define_store(arguments.store)
        client.define_durable(arguments.store, "all", {"type": "shared"})
        lines, duplicates = import_lines(client, arguments.file, arguments.store)
    print(f"{lines} lines, {duplicates} of them were there already")


if __name__ == "__main__":
    main()
