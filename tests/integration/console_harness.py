"""A service, a console and a browser: started as a user would start them, and a page that notices what is wrong.

``Pages`` fails a test for an error in the browser's console, a request to another host, a violation of WCAG A or AA,
and a page that scrolls sideways.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright
from tests.crash.server_process import ServerProcess
from tests.rgw import free_port

ADMIN = "admin-token-0123456789"
READER = "reader-token-0123456789"
READY_SECONDS_MAX = 30.0
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 390, "height": 844}
# Debian's Chromium, which must ask no other host than the console.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio",
)  # fmt: skip
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
"""What another theme can break."""
PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
LOOKED_AT = None if PROVE else {"exclude": [["tbody tr:nth-child(n+4)"]]}
"""The rows of a table are made by one function: three of them are enough for axe, which takes a second for fifty."""
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
_AXE = Axe()
_SEEN: set[tuple[str, str]] = set()
IGNORED_ERRORS = ("status of 409", "status of 403", "status of 400")
"""The browser logs each response with such a status, which some tests want."""


class Service:
    """One ``holdfast serve`` with tokens, which may be killed and started again on its log."""

    def __init__(self, folder: Path, *flags: str, waits: bool = True, tokens_file: Path | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        tokens = f"server.tokens=admin:{ADMIN},read:{READER}"
        if tokens_file is not None:
            tokens = f"server.tokens_file={tokens_file}"
        self.flags = [*(["--init"] if waits else []), "--set", tokens, *flags]
        self.process = self._start(waits=waits)

    def _start(self, *, waits: bool = True) -> ServerProcess:
        process = ServerProcess(self.folder, (self.folder / "log").as_uri(), self.port, flags=self.flags)
        if waits:
            process.wait_until_leading()
        return process

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def restart(self) -> None:
        """Start it again, after a kill."""
        self.process = self._start()

    def end(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class ConsoleProcess:
    """One ``holdfast console``."""

    def __init__(self, folder: Path, services: Sequence[str], *flags: str, token: str | None = ADMIN) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "holdfast.cli.main", "console", "--listen", f"127.0.0.1:{self.port}"]
        for url in services:
            command += ["--service", url]
        if token is not None:
            file = folder / f"token-{self.port}"
            file.write_text(token + "\n")
            command += ["--token-file", str(file)]
        self.output = folder / f"console-{self.port}.log"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command, *flags],
                stdout=output,
                stderr=output,
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
            )
        self._wait()

    @property
    def url(self) -> str:
        """What a browser opens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def resident_bytes(self) -> int:
        """Its memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _wait(self) -> None:
        began = time.monotonic()
        while True:
            assert self._process.poll() is None, self.output.read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/static/icon.svg", timeout=5).close()
                return
            assert time.monotonic() - began < READY_SECONDS_MAX, self.output.read_text()
            time.sleep(0.05)

    def end(self) -> None:
        """SIGTERM, and what it wrote must have no trace of a bug."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        assert "Traceback" not in self.output.read_text(), self.output.read_text()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Pages:
    """One tab of one console."""

    def __init__(self, browser: Browser, base: str) -> None:
        self.base = base
        self.context = browser.new_context(viewport=WIDE, locale="en-GB", timezone_id="Europe/Berlin")  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.errors: list[str] = []
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._requested)

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(each in message.text for each in IGNORED_ERRORS):
            self.errors.append(message.text)

    def _requested(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.base).netloc:
            self.errors.append(f"a request to another host: {request.url}")

    def go(self, path: str) -> Page:
        """Open a page."""
        self.page.goto(self.base + path)
        return self.page

    def title(self) -> str:
        """The heading."""
        return self.page.locator("h1").inner_text()

    def text(self) -> str:
        """What the page says."""
        return self.page.locator("main").inner_text()

    def act(
        self, path: str, fields: Mapping[str, str | bool], *, confirm: str | None = None, compare: bool = False
    ) -> str:
        """Fill the form of an action and send it; what the next page says first.

        ``compare``: the action shows first what it would do, and is sent again.
        """
        page = self.go(path)
        assert page.locator("form.act").count(), self.text()
        for name, value in fields.items():
            field = page.locator(f'[name="{name}"]')
            if isinstance(value, bool):
                field.set_checked(value)
            elif field.evaluate("node => node.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        if compare:
            page.locator("form.act button[type=submit]").click()
            page.locator('form.act [name="seen"], form.act [name="confirm"]').first.wait_for(state="attached")
        if confirm is not None:
            page.locator('[name="confirm"]').fill(confirm)
        page.locator("form.act button[type=submit]").click()
        page.wait_for_load_state()
        said = page.locator(".flashes .notice, form.act .notice.bad")
        said.first.wait_for()
        return said.first.inner_text()

    def check(self, *, in_dark: bool = False, with_axe: bool = True) -> None:
        """No violation of WCAG A or AA, nothing that scrolls sideways, no error so far.

        ``in_dark``: nor in dark, where only colours can be wrong; the proof looks at every page in both. In `make test`
        axe gets a page once, and none without ``with_axe``: it takes more processor time than all the rest.
        """
        page = self.page
        schemes = [("light", WCAG)]
        if PROVE or in_dark:
            schemes.append(("dark", WCAG if PROVE else CONTRAST))
        for scheme, rules in schemes:
            place = (scheme, page.url.removeprefix(self.base).partition("?")[0])
            if SMALL and (place in _SEEN or not with_axe):
                continue
            _SEEN.add(place)
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            found = _AXE.run(page, context=LOOKED_AT, options=rules).response["violations"]
            assert not found, [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]
        for size in (NARROW, WIDE):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= size["width"], f"{page.url} is {wide} wide on {size['width']}"
        assert not self.errors, self.errors

    def start_over(self) -> None:
        """Forget the session and the theme, for another test."""
        self.context.clear_cookies()
        self.errors.clear()

    def close(self) -> None:
        """Close the tab."""
        self.context.close()
