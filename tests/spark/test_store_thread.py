"""A store on a thread of its own ends while other threads use it: what they began is ended, and nothing is lost."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest
from tests.matrix import matrix

from holdfast.errors import Closed
from holdfast.objects.port import ObjectStore
from holdfast.spark.runtime.store_thread import StoreThread


@pytest.mark.parametrize("round_number", matrix(range(30), 5))
def test_what_other_threads_begin_at_the_end_is_cancelled_or_refused(round_number: int, tmp_path: Path) -> None:
    del round_number
    begun: list[Future[None]] = []
    refused = threading.Event()
    is_busy = threading.Event()

    async def look(store: ObjectStore) -> None:
        await store.list("batches/")
        is_busy.set()

    def use(thread: StoreThread) -> None:
        while True:
            try:
                begun.append(thread.start(look))
            except Closed:
                refused.set()
                return

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with StoreThread(tmp_path.as_uri()) as thread:
            user = threading.Thread(target=use, args=(thread,))
            user.start()
            assert is_busy.wait(10)
        assert refused.wait(10)
        user.join(10)
        for future in begun:
            try:
                future.result(10)
            except CancelledError:
                pass
