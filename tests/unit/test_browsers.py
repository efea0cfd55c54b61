"""Which requests of browsers a place takes, by their header fields."""

from __future__ import annotations

import re

import pytest

from holdfast.browsers import BrowserGuard, guard_of, is_address, is_browser, listed_hosts, name_of

GUARD = BrowserGuard(frozenset({"localhost", "log.example"}), origins=frozenset({"app.example:3000", "plain.example"}))
PORTS = BrowserGuard(frozenset({"log.example:8081", "[::1]:8081"}), with_ports=True, scheme="https")


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("", True),
        ("localhost", True),
        (" LOG.example:81 ", True),
        ("log.example.:81", True),
        ("10.0.0.7:8080", True),
        ("[::1]", True),
        ("[fe80::1%eth0]:80", True),
        ("127.1", True),
        ("0x7f.1", True),
        ("a.example", False),
        ("log.example.a.example", False),
        ("[log]", False),
        ("example", False),
        (".log.example", False),
    ],
)
def test_a_place_serves_its_names_and_every_address(host: str, is_served: bool) -> None:
    assert GUARD.serves(host) is is_served


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("log.example:8081", True),
        ("LOG.example:8081 ", True),
        ("[::1]:8081", True),
        ("log.example", False),
        ("log.example:8082", False),
        ("127.0.0.1:8081", False),
        ("", False),
    ],
)
def test_a_place_with_ports_serves_what_it_lists_alone(host: str, is_served: bool) -> None:
    assert PORTS.serves(host) is is_served


@pytest.mark.parametrize(
    ("host", "origin", "site", "is_own"),
    [
        ("localhost:8080", None, None, True),
        ("localhost:8080", None, "same-origin", True),
        ("localhost:8080", None, " NONE ", True),
        ("localhost:8080", None, "same-site", False),
        ("localhost:8080", None, "cross-site", False),
        ("localhost:8080", "https://localhost:8080", None, True),
        (" LOCALHOST:8080", " HTTPS://LocalHost:8080 ", "same-origin", True),
        ("localhost:8080", "https://localhost:8080", "cross-site", False),
        ("localhost:8080", "http://localhost:9000", None, False),
        ("localhost", "http://localhost:80", None, True),
        ("localhost:80", "http://localhost", None, True),
        ("localhost:443", "https://localhost", None, True),
        ("localhost:443", "http://localhost", None, False),
        ("localhost:8080", "http://app.example:3000", "cross-site", True),
        ("localhost:8080", "http://app.example:3001", "cross-site", False),
        ("localhost:8080", "http://plain.example:80", "cross-site", True),
        ("localhost:8080", "https://plain.example:443", "cross-site", True),
        ("localhost:8080", "null", None, False),
        ("localhost:8080", "", None, False),
        ("localhost:8080", "http://", None, False),
        ("", "http://", None, False),
        ("localhost:8080", "ftp://localhost:8080", None, False),
        ("XXXX", "ftp://XXXX", None, False),
        ("localhost:8080", "http://a://localhost:8080", None, False),
        ("a://b", "http://a://b", None, True),
        (":80localhost", "http://localhost", None, False),
        ("localhost", "http://:80localhost", None, False),
    ],
)
def test_a_page_is_the_place_s_own_by_its_origin_or_where_it_says_so(
    host: str, origin: str | None, site: str | None, is_own: bool
) -> None:
    assert GUARD.is_own_page(host, origin, site) is is_own


def test_a_page_of_a_place_with_a_scheme_has_that_scheme() -> None:
    assert PORTS.is_own_page("log.example:8081", "https://log.example:8081", None)
    assert not PORTS.is_own_page("log.example:8081", "http://log.example:8081", None)


def test_a_host_is_named_without_port_brackets_and_the_dot_of_the_root() -> None:
    named = {
        "[::1]:8080": "::1",
        "[::1]": "::1",
        "[a]b]:1": "a",
        "log.example.:80": "log.example",
        "localhost": "localhost",
    }
    assert {host: name_of(host) for host in named} == named
    assert name_of("log.example..") == "log.example." and name_of(".a:1:2") == ".a"


def test_an_address_is_what_browsers_take_for_one() -> None:
    addresses = ("127.0.0.1", "::1", "fe80::1%eth0%1", "1", "0x7f", "a.1", "x.0x", "0x")
    assert [is_address(name) for name in addresses] == [True] * len(addresses)
    names = ("localhost", "a.b1", "1.a", "0xg", "", "x1%y", "a.1x")
    assert [is_address(name) for name in names] == [False] * len(names)


def test_listed_hosts_are_small_letters_without_repetition() -> None:
    assert listed_hosts([" Log.Example ", "app.example:3000", "log.example", "[::1]:80", "a_b"]) == (
        "log.example", "app.example:3000", "[::1]:80", "a_b",
    )  # fmt: skip
    assert listed_hosts([]) == ()
    words = 'names such as "log.example" or "app.example:3000", without a scheme and a path'
    for wrong in ("http://a", "a/b", "", "a b", "-a", "a-", "a:", "a:123456", "*.a", "[g]", "\u00e4"):
        with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
            listed_hosts(["fine", wrong])


def test_a_guard_has_the_names_of_the_service_and_of_what_is_listed() -> None:
    guard = guard_of([" Log.Example:8080", "10.0.0.7", ""], ["app.example:3000"])
    assert guard == BrowserGuard(
        frozenset({"localhost", "log.example", "10.0.0.7", "app.example"}), frozenset({"app.example:3000"})
    )
    assert (guard.with_ports, guard.scheme) == (False, "")
    assert guard_of(iter(["a"]), iter(["b:1"])).origins == frozenset({"b:1"})


def test_a_browser_says_what_it_is() -> None:
    assert is_browser("Mozilla/5.0 (X11)")
    assert not is_browser(None) and not is_browser("curl/8") and not is_browser("a Mozilla/5.0")
