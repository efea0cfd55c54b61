"""Commit the orders of a file: ``python take_orders.py http://127.0.0.1:8080 monday.csv``.

With standbys the URL is all addresses with commas. HOLDFAST_TOKEN is the token, if the service needs one.
A line without an item withdraws its order. All lines are one transaction: readers see the file whole or not at all.
"""

import csv
import json
import os
import sys

from holdfast import Client, Delete, Operation, Write


def operation(line: dict[str, str]) -> Operation:
    """What a line changes."""
    key = f"order/{line['order']}".encode()
    if not line["item"]:
        return Delete(key)
    placed = {"item": line["item"], "pieces": int(line["pieces"]), "cents": int(line["cents"])}
    return Write(key, json.dumps(placed).encode())


def main(url: str, path: str) -> None:
    """Commit and say at which version."""
    with open(path, newline="", encoding="utf-8") as file:
        operations = [operation(line) for line in csv.DictReader(file)]
    with Client(url, token=os.environ.get("HOLDFAST_TOKEN")) as client:
        print(f"version {client.commit(operations).version}")


if __name__ == "__main__":
    main(*sys.argv[1:])
