"""Consume, change, publish: each order takes from the stock and makes an invoice, exactly once.

    holdfast log init file:$PWD/log --stores log
    holdfast serve --log file:$PWD/log &
    python -m examples.stores.ship_orders [--url URL] [--orders 100] [--workers 3]

An order is a message, the stock of a product is a key, an invoice is a message. One commit acknowledges the order,
writes the stock and publishes the invoice. Kill workers and the leader as you like: the books balance.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections import Counter
from collections.abc import Sequence

from holdfast import Client, StoreClient, Write
from holdfast.client import BlockingTransaction
from holdfast.client.stores import Delivery, SubscriberOptions
from holdfast.errors import Closed

TOKEN = os.environ.get("HOLDFAST_TOKEN")
PRODUCTS = ("cake", "coffee", "juice", "milk", "rolls", "soup", "tea", "water")


def prepare(urls: Sequence[str], orders: int) -> None:
    """A stock for all orders, and the orders, each of 1 to 3 pieces of one product."""
    stock = Counter[bytes]()
    for number in range(orders):
        pieces, product = order_of(number)
        stock[key_of(product)] += pieces
    with Client(urls, token=TOKEN) as client, StoreClient(urls, token=TOKEN) as stores:
        client.commit([Write(key, str(pieces).encode()) for key, pieces in stock.items()])
        for store, durable in (("orders", "work"), ("invoices", "all")):
            stores.define_store(store)
            stores.define_durable(store, durable, {"type": "shared"})
        with stores.publisher("orders") as publisher:
            for number in range(orders):
                publisher.send("{} x {}".format(*order_of(number)).encode())
            publisher.flush()


def order_of(number: int) -> tuple[int, str]:
    return number % 3 + 1, PRODUCTS[number % len(PRODUCTS)]


def key_of(product: str) -> bytes:
    return f"stock/{product}".encode()


def ship(client: Client, worker: str, order: Delivery) -> bool:
    """One order. False: another worker has it."""

    def step(txn: BlockingTransaction) -> None:
        pieces, _, product = order.body.decode().split(maxsplit=2)
        stock = int(txn.get(key_of(product)) or b"0")
        txn.write(key_of(product), str(stock - int(pieces)).encode())
        txn.publish("invoices", order.body, fields={"order": order.seq})
        txn.acknowledge("orders", "work", worker, order)

    try:
        client.transact(step)
    except Closed:
        return False
    return True


def work(urls: Sequence[str], worker: str, done: threading.Event) -> int:
    """Ship orders until ``done``; how many."""
    shipped = 0
    options = SubscriberOptions(explicit_ack=True)
    with (
        Client(urls, token=TOKEN) as client,
        StoreClient(urls, token=TOKEN) as stores,
        stores.subscriber("orders", "work", subscriber=worker, options=options) as orders,
    ):
        while not done.is_set():
            order = orders.receive(timeout=0.2)
            if order is not None:
                shipped += ship(client, worker, order)
    return shipped


def invoices(urls: Sequence[str]) -> list[Delivery]:
    with StoreClient(urls, token=TOKEN) as stores:
        return list(stores.browser("invoices", "all"))


def balance(urls: Sequence[str], orders: int) -> str:
    """What the books say: each order has one invoice, and of the stock of every product nothing is left."""
    found = invoices(urls)
    with Client(urls, token=TOKEN) as client:
        left = [int(item.value) for item in client.range(prefix=b"stock/").items]
    numbers = [invoice.fields["order"] for invoice in found]
    once = len(numbers) == len(set(numbers)) == orders
    holds = once and bool(left) and not any(left)
    return f"{orders} orders, {len(numbers)} invoices, stock {sum(left)}: {'balanced' if holds else 'WRONG'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", action="append", help="the service's address; again for each standby")
    parser.add_argument("--orders", type=int, default=100)
    parser.add_argument("--workers", type=int, default=3)
    asked = parser.parse_args()
    urls = asked.url or ["http://127.0.0.1:8080"]
    prepare(urls, asked.orders)
    done = threading.Event()
    workers = [threading.Thread(target=work, args=(urls, f"worker-{n}", done)) for n in range(asked.workers)]
    for worker in workers:
        worker.start()
    while len(invoices(urls)) < asked.orders and any(worker.is_alive() for worker in workers):
        done.wait(0.2)
    done.set()
    for worker in workers:
        worker.join()
    print(balance(urls, asked.orders))


if __name__ == "__main__":
    main()
