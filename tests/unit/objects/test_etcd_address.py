"""Where a store on etcd is, and the proof of who asks: what is refused, and what no text shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.commit.format.batch import HEADER_BYTES, PREFIX
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.objects.endpoint import endpoint_of, is_shared
from holdfast.objects.etcd import layout
from holdfast.objects.etcd.address import EtcdAddress, parse_url, read_credentials
from holdfast.objects.etcd.layout import Head, decode_head, decode_mark


@pytest.mark.parametrize(
    ("url", "endpoints", "prefix"),
    [
        ("etcd://a:2379/log", ("a:2379",), "log"),
        ("etcd://A.example,b.example:1/team/log/", ("a.example:2379", "b.example:1"), "team/log"),
        ("etcd://10.0.0.1:2379,[::1]:2380/log", ("10.0.0.1:2379", "[::1]:2380"), "log"),
    ],
)
def test_a_url_names_members_and_a_prefix(url: str, endpoints: tuple[str, ...], prefix: str) -> None:
    assert parse_url(url) == EtcdAddress(endpoints, prefix)
    assert parse_url(parse_url(url).url) == parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "etcd:///log",
        "etcd://a:2379",
        "etcd://a:2379/",
        "etcd://a:0/log",
        "etcd://a:65536/log",
        "etcd://a:port/log",
        "etcd://a,,b/log",
        "etcd://a,a:2379/log",
        "etcd://user:secret@a/log",
        "etcd://a/log?user=secret",
        "etcd://a/log#secret",
        "etcd://a/lo g",
        "etcd://a//log",
        "etcd://[::1/log",
    ],
)
def test_another_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_url(url)
    assert "secret" not in caught.value.statement() + caught.value.hint


def test_a_proof_comes_from_the_environment_and_its_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of the file\n")
    (tmp_path / "pem").write_bytes(b"PEM")
    pem = str(tmp_path / "pem")
    assert read_credentials({}).authority is None
    assert read_credentials({"ETCDCTL_USER": "u:of the user"}).password == "of the user"
    assert read_credentials({"ETCDCTL_USER": "u", "ETCDCTL_PASSWORD": "of the variable"}).password == "of the variable"
    named = {"ETCDCTL_USER": "u", "HOLDFAST_ETCD_PASSWORD_FILE": str(tmp_path / "password"), "ETCDCTL_CACERT": pem}
    proof = read_credentials({**named, "ETCDCTL_CERT": pem, "ETCDCTL_KEY": pem})
    assert (proof.user, proof.password, proof.authority, proof.key) == ("u", "of the file", b"PEM", b"PEM")
    assert "of the file" not in repr(proof)


@pytest.mark.parametrize(
    "environment",
    [
        {"ETCDCTL_USER": "u"},
        {"ETCDCTL_CERT": __file__},
        {"ETCDCTL_CERT": __file__, "ETCDCTL_KEY": __file__},
        {"ETCDCTL_CACERT": "/absent"},
        {"HOLDFAST_ETCD_PASSWORD_FILE": "/absent"},
    ],
)
def test_half_a_proof_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_credentials(environment)
    assert caught.value.code is Code.BAD_CONFIGURATION


def test_the_endpoint_of_a_race_is_the_members() -> None:
    assert endpoint_of("etcd://A:2379,b:2379/log", {}) == "etcd://a:2379,b:2379"
    assert not is_shared("etcd://a:2379/log"), "no gateway is between"


def test_the_first_part_is_the_header_of_a_batch() -> None:
    assert (layout.HEADER_BYTES, layout.HEADERS_UNDER) == (HEADER_BYTES, PREFIX)


def test_bytes_that_are_no_head_or_mark_are_damage() -> None:
    head = Head.of_new("batches/1", "ab" * 16, 3 * layout.PART_BYTES)
    assert decode_head(head.encode(), "batches/1") == head
    tiny = Head("ab" * 16, layout.OBJECT_BYTES_MAX, 1, 1).encode()  # of a hundred million parts
    damaged = (b"", head.encode()[:-1], head.encode() + b"x", b"\2" + head.encode()[1:], bytes((1, *bytes(32))), tiny)
    for value in damaged:
        with pytest.raises(CorruptData):
            decode_head(value, "batches/1")
    for value in (b"", b"7", b"x batches/1", b"7 ", b"\xff batches/1"):
        with pytest.raises(CorruptData):
            decode_mark(value)
