"""Configuration: every key's default and rule, every rule between keys, every source."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import Code, InvalidRequest
from holdfast.settings import KEYS, Configuration, Settings, load_configuration

HERE = Path("/srv/app")


def load(**values: object) -> Configuration:
    """The configuration with these keys given as flags (``log__url`` for ``log.url``)."""
    return load_configuration(
        flags={name.replace("__", "."): value for name, value in values.items()}, environ={}, working_directory=HERE
    )


def value_of(settings: Settings, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


DEFAULTS: dict[str, object] = {
    "server.listen": ("127.0.0.1:8080",),
    "server.advertised_address": "127.0.0.1:8080",
    "server.hosts": (),
    "server.socket_mode": 0o660,
    "server.max_request_size_bytes": 1_048_576,
    "server.max_connections": 50_000,
    "server.min_body_bytes_per_second": 16_384,
    "server.max_unsent_bytes": 268_435_456,
    "server.max_in_flight_commits": 65_536,
    "server.max_in_flight_bytes": 268_435_456,
    "server.client_commits_per_second_max": 0,
    "server.drain_seconds_max": 30.0,
    "server.tls_certificate": None,
    "server.tls_key": None,
    "server.peer_ca_file": None,
    "server.peer_name": None,
    "server.tokens": (),
    "server.tokens_file": None,
    "log.url": "file:///srv/app/holdfast-data",
    "log.segments_url": None,
    "log.scrub_days": 7.0,
    "log.scrub_bytes_per_second": 4_194_304,
    "persist.batch_timeout_ms": 1.0,
    "persist.batch_timeout_max_ms": 50.0,
    "persist.batch_size_threshold": 1_048_576,
    "persist.put_requests_per_second_max": None,
    "persist.max_in_flight_requests": 50,
    "persist.target_pool_size": 100,
    "persist.request_timeout_ms": 10_000.0,
    "persist.max_retry_attempts": None,
    "persist.give_up_after_seconds": 60.0,
    "persist.retry_base_delay_ms": 100.0,
    "persist.retry_max_delay_ms": 5_000.0,
    "persist.hedge_after_percentile": None,
    "leader.sign_interval_ms": 2_000.0,
    "standby.delay_ms": 0.0,
    "view.enabled": True,
    "view.memory_bytes": 67_108_864,
    "commit.min_request_id_length": 20,
    "commit.conflict_window_seconds": 60.0,
    "commit.conflict_window_bytes": 268_435_456,
    "commit.max_operations": 10_000,
    "commit.max_preconditions": 10_000,
    "commit.stalled_after_seconds": 3.0,
    "retention.max_age_seconds": None,
    "retention.max_bytes": None,
    "retention.min_age_seconds": 3_600.0,
    "retention.check_seconds": 60.0,
    "retention.deletes_per_second": 1_000.0,
    "retention.warn_after_seconds": 2_592_000.0,
    "snapshots.keep": 3,
    "snapshots.every_bytes": 1 << 30,
    "snapshots.every_seconds": 86_400.0,
    "snapshots.check_seconds": 60.0,
    "subscription.max_buffer_size_bytes": 10_485_760,
    "subscription.keepalive_interval_seconds": 30.0,
    "stores.enabled": True,
    "stores.durability": None,
    "stores.directory": "/srv/app/holdfast-data-stores",
    "stores.definitions": None,
    "stores.max_request_size_bytes": 16_777_216,
    "stores.page_size_bytes": 67_108_864,
    "stores.memory_bytes": 134_217_728,
    "stores.checkpoint_bytes": 1 << 30,
    "stores.checkpoint_seconds": 900.0,
    "stores.statistics_seconds": 60.0,
    "stores.statistics_message_seconds": 2.0,
    "stores.clock": "steady",
    "logging.format": "logfmt",
    "logging.level": "info",
}


def test_every_key_has_a_tested_default() -> None:
    assert [key.name for key in KEYS] == list(DEFAULTS)


@pytest.mark.parametrize(("key", "expected"), DEFAULTS.items(), ids=DEFAULTS)
def test_a_key_that_nobody_gives_has_its_default(key: str, expected: object) -> None:
    assert value_of(load().settings, key) == expected


# key, a text of the environment or a flag, its value
ACCEPTED: list[tuple[str, object, object]] = [
    ("server.listen", "0.0.0.0:80, unix:/run/h.sock", ("0.0.0.0:80", "unix:/run/h.sock")),
    ("server.listen", ["[::1]:0"], ("[::1]:0",)),
    ("server.listen", ["a:1", "a:1"], ("a:1",)),
    ("server.advertised_address", "log.example:8080", "log.example:8080"),
    ("server.socket_mode", "600", 0o600),
    ("server.hosts", "Log.example, app.example:3000", ("log.example", "app.example:3000")),
    ("server.max_request_size_bytes", "2 MiB", 2_097_152),
    ("server.max_connections", "0", 0),
    ("server.client_commits_per_second_max", "1_000", 1000),
    ("server.drain_seconds_max", "0.5", 0.5),
    ("log.url", "s3://bucket/log?region=eu-west-1", "s3://bucket/log?region=eu-west-1"),
    ("log.url", "memory:", "memory:"),
    ("log.url", "etcd://a:2379,b:2379,c:2379/log", "etcd://a:2379,b:2379,c:2379/log"),
    ("log.segments_url", "s3://lake/segments?region=eu-west-1", "s3://lake/segments?region=eu-west-1"),
    ("log.segments_url", "", None),
    ("persist.batch_timeout_ms", "0.25", 0.25),
    ("persist.batch_timeout_max_ms", 1, 1.0),
    ("persist.batch_size_threshold", 1, 1),
    ("persist.put_requests_per_second_max", "unlimited", None),
    ("persist.put_requests_per_second_max", 20, 20),
    ("persist.max_in_flight_requests", 1000, 1000),
    ("persist.target_pool_size", "50", 50),
    ("persist.request_timeout_ms", 0.5, 0.5),
    ("persist.max_retry_attempts", "unlimited", None),
    ("persist.max_retry_attempts", 0, 0),
    ("persist.give_up_after_seconds", "10", 10.0),
    ("persist.retry_base_delay_ms", 5000, 5000.0),
    ("persist.retry_max_delay_ms", 100, 100.0),
    ("persist.hedge_after_percentile", "99.9", 99.9),
    ("persist.hedge_after_percentile", "off", None),
    ("persist.hedge_after_percentile", False, None),
    ("leader.sign_interval_ms", 1001, 1001.0),
    ("standby.delay_ms", 700, 700.0),
    ("view.enabled", "off", False),
    ("view.enabled", True, True),
    ("view.memory_bytes", 0, 0),
    ("view.memory_bytes", "1MiB", 1 << 20),
    ("commit.min_request_id_length", 255, 255),
    ("commit.conflict_window_seconds", "0.5", 0.5),
    ("commit.conflict_window_bytes", "1GiB", 1 << 30),
    ("retention.max_age_seconds", "86400", 86_400.0),
    ("retention.max_age_seconds", "none", None),
    ("retention.max_bytes", "10 GiB", 10 << 30),
    ("retention.min_age_seconds", 0, 0.0),
    ("retention.check_seconds", "0.05", 0.05),
    ("retention.warn_after_seconds", "0", 0.0),
    ("retention.deletes_per_second", 1, 1.0),
    ("snapshots.keep", "2", 2),
    ("snapshots.every_bytes", "off", None),
    ("snapshots.every_seconds", "off", None),
    ("snapshots.check_seconds", 1, 1.0),
    ("subscription.max_buffer_size_bytes", "1_000", 1000),
    ("subscription.keepalive_interval_seconds", 1, 1.0),
    ("stores.enabled", "false", False),
    ("stores.durability", "log", "log"),
    ("stores.directory", "/var/lib/stores", "/var/lib/stores"),
    ("stores.definitions", "/etc/stores.toml", "/etc/stores.toml"),
    ("stores.max_request_size_bytes", "1 MiB", 1 << 20),
    ("stores.page_size_bytes", 1 << 20, 1 << 20),
    ("stores.memory_bytes", "64 MiB", 64 << 20),
    ("stores.checkpoint_bytes", "64 MiB", 64 << 20),
    ("stores.checkpoint_seconds", 60, 60.0),
    ("stores.statistics_seconds", 0, 0.0),
    ("stores.statistics_message_seconds", 0, 0.0),
    ("stores.clock", "wall", "wall"),
    ("logging.format", "json", "json"),
    ("logging.level", "debug", "debug"),
]


@pytest.mark.parametrize(("key", "given", "expected"), ACCEPTED)
def test_a_value_at_the_border_of_its_rule_is_taken(key: str, given: object, expected: object) -> None:
    assert value_of(load(**{key: given}).settings, key) == expected


REFUSED: list[tuple[str, object]] = [
    ("server.listen", ""),
    ("server.listen", "8080"),
    ("server.listen", "::1:8080"),
    ("server.listen", "host:65536"),
    ("server.listen", "unix:"),
    ("server.listen", [1]),
    ("server.listen", "unix:/" + "x" * 256),
    ("server.advertised_address", 5),
    ("server.hosts", "http://log.example"),
    ("server.socket_mode", "0777"),
    ("server.min_body_bytes_per_second", 0),
    ("server.max_unsent_bytes", 1_048_575),
    ("server.socket_mode", 660),
    ("server.hosts", "log.example/path"),
    ("server.max_request_size_bytes", 0),
    ("server.max_request_size_bytes", "1 MB"),
    ("server.max_connections", -1),
    ("server.max_connections", 1.5),
    ("server.client_commits_per_second_max", -1),
    ("server.client_commits_per_second_max", "unlimited"),
    ("server.drain_seconds_max", 0),
    ("server.max_in_flight_commits", 0),
    ("server.max_in_flight_bytes", 0),
    ("log.scrub_days", 0),
    ("log.scrub_days", "never"),
    ("log.scrub_bytes_per_second", 1000),
    ("commit.max_operations", 0),
    ("commit.max_preconditions", "unlimited"),
    ("commit.stalled_after_seconds", 0),
    ("server.tls_certificate", 1),
    ("server.peer_ca_file", 1),
    ("server.peer_name", 1),
    ("server.tokens_file", 1),
    ("server.tokens", "root:0123456789abcdef"),
    ("server.tokens", "admin:short"),
    ("server.tokens", ""),
    ("server.tokens", " , "),
    ("server.tokens", "admin:0123456789abcdef,read:0123456789abcdef"),
    ("log.url", "ftp://somewhere"),
    ("log.url", "file:relative"),
    ("log.url", "file://host/path"),
    ("log.url", "s3:///prefix"),
    ("log.url", "s3://key:secret@bucket/prefix"),
    ("log.url", "/var/lib/holdfast"),
    ("log.url", "etcd:///log"),
    ("log.url", "etcd://a:2379,b:2379"),
    ("log.url", "etcd://user:secret@a:2379/log"),
    ("log.segments_url", "memory:"),
    ("log.segments_url", "etcd://a:2379/log"),
    ("log.segments_url", "s3://key:secret@bucket/prefix"),
    ("persist.batch_timeout_ms", 0),
    ("persist.batch_timeout_ms", "nan"),
    ("persist.batch_timeout_ms", 10**309),
    ("persist.batch_timeout_ms", True),
    ("persist.batch_timeout_max_ms", "inf"),
    ("persist.batch_size_threshold", 0),
    ("persist.put_requests_per_second_max", 0),
    ("persist.max_in_flight_requests", 0),
    ("persist.max_in_flight_requests", 1001),
    ("persist.target_pool_size", 0),
    ("persist.request_timeout_ms", 0),
    ("persist.max_retry_attempts", -1),
    ("persist.max_retry_attempts", "many"),
    ("persist.give_up_after_seconds", 0),
    ("persist.retry_base_delay_ms", 0),
    ("persist.retry_max_delay_ms", -5),
    ("persist.hedge_after_percentile", 49.9),
    ("persist.hedge_after_percentile", 100),
    ("persist.hedge_after_percentile", True),
    ("leader.sign_interval_ms", 49),
    ("standby.delay_ms", -1),
    ("standby.delay_ms", 600_001),
    ("leader.sign_interval_ms", 600_001),
    ("view.enabled", "perhaps"),
    ("view.enabled", 1),
    ("view.memory_bytes", -1),
    ("view.memory_bytes", "none"),
    ("commit.min_request_id_length", 0),
    ("commit.min_request_id_length", 256),
    ("commit.conflict_window_seconds", 0),
    ("commit.conflict_window_bytes", "none"),
    ("retention.max_age_seconds", 0),
    ("retention.max_bytes", 0),
    ("retention.min_age_seconds", -1),
    ("retention.warn_after_seconds", "-1"),
    ("retention.check_seconds", 0),
    ("retention.deletes_per_second", 0),
    ("snapshots.keep", 1),
    ("snapshots.every_bytes", 0),
    ("snapshots.every_seconds", 0),
    ("snapshots.check_seconds", 0),
    ("subscription.max_buffer_size_bytes", 0),
    ("subscription.keepalive_interval_seconds", 0),
    ("stores.enabled", "perhaps"),
    ("stores.durability", "tape"),
    ("stores.directory", 1),
    ("stores.definitions", 1),
    ("stores.max_request_size_bytes", 0),
    ("stores.page_size_bytes", (1 << 20) - 1),
    ("stores.memory_bytes", (8 << 20) - 1),
    ("stores.checkpoint_bytes", (1 << 20) - 1),
    ("stores.checkpoint_seconds", 0),
    ("stores.statistics_seconds", -1),
    ("stores.statistics_message_seconds", -1),
    ("stores.clock", "sundial"),
    ("logging.format", "xml"),
    ("logging.level", "loud"),
]


@pytest.mark.parametrize(("key", "given"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_value_outside_of_its_rule_is_refused_by_key(key: str, given: object) -> None:
    with pytest.raises(InvalidRequest, match=key.replace(".", r"\.")) as caught:
        load(**{key: given})
    assert caught.value.code is Code.BAD_CONFIGURATION


def test_every_key_has_a_refused_value() -> None:
    assert {key for key, _ in REFUSED} | {"server.tls_key"} == set(DEFAULTS)


BETWEEN_KEYS: list[tuple[dict[str, object], str]] = [
    ({"stores.enabled": False, "stores.definitions": "/etc/stores.toml"}, "needs stores that are hosted"),
    ({"log.url": "memory:", "stores.definitions": "/etc/stores.toml"}, "needs stores that are hosted"),
    ({"server.tls_certificate": "/c.pem"}, "useless without the other"),
    ({"server.tls_key": "/k.pem"}, "useless without the other"),
    ({"server.advertised_address": "x" * 257}, "256 bytes"),
    ({"persist.batch_timeout_ms": 51}, "adaptive interval"),
    ({"persist.target_pool_size": 49}, "waits for a connection"),
    ({"persist.retry_base_delay_ms": 5001}, "the delay grows"),
    ({"log.url": "etcd://a/log", "server.max_request_size_bytes": (24 << 20) + 1}, "one leader after the other"),
    ({"log.url": "etcd://a/log", "stores.max_request_size_bytes": (24 << 20) + 1}, "one leader after the other"),
    ({"log.url": "etcd://a/log", "persist.batch_size_threshold": (24 << 20) + 1}, "one leader after the other"),
]


@pytest.mark.parametrize(("values", "reason"), BETWEEN_KEYS)
def test_a_rule_between_keys_is_refused_with_its_reason(values: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        load(**values)


DOUBTFUL: list[tuple[dict[str, object], str]] = [
    ({"persist.target_pool_size": 101}, "stay idle"),
    ({"persist.request_timeout_ms": 60_000}, "one lost answer ends the leader"),
    ({"server.listen": "0.0.0.0:8080"}, "anybody may commit"),
    ({"server.listen": "h:1", "server.tokens": "admin:0123456789abcdef"}, "in clear"),
    ({"log.url": "memory:"}, "gone when the process ends"),
    ({"log.url": "s3://b/p"}, "another place on each machine"),
    ({"log.url": "gs://b/p", "server.listen": "unix:/run/h.sock"}, "another place on each machine"),
    ({"log.url": "gs://b/p"}, "log.url is gs:, which is not tested"),
    ({"log.url": "az://b/p", "server.advertised_address": "https://localhost:8080"}, "another place on each machine"),
]


@pytest.mark.parametrize(("values", "warning"), DOUBTFUL)
def test_what_is_allowed_and_doubtful_is_a_warning(values: dict[str, object], warning: str) -> None:
    assert any(warning in text for text in load(**values).warnings)


def test_the_defaults_warn_of_nothing() -> None:
    assert load().warnings == ()


def test_a_shared_store_with_an_address_that_others_can_ask_warns_of_nothing() -> None:
    assert load(**{"log.url": "s3://b/p", "server.advertised_address": "log.example.net:8443"}).warnings == ()


@pytest.mark.parametrize(
    ("url", "timeout_ms", "hedge", "view"),
    [
        ("file:///data", 1.0, None, True),
        ("memory:", 5.0, 95.0, True),
        ("s3://b/p", 5.0, 95.0, False),
        ("etcd://a:2379/p", 5.0, None, False),
        ("gs://b/p", 5.0, 95.0, False),
        ("az://b/p", 5.0, 95.0, False),
    ],
)
def test_some_defaults_depend_on_the_kind_of_store(
    url: str, timeout_ms: float, hedge: float | None, view: bool
) -> None:
    settings = load(log__url=url).settings
    in_force = (settings.persist.batch_timeout_ms, settings.persist.hedge_after_percentile, settings.view.enabled)
    assert in_force == (timeout_ms, hedge, view)


def test_a_value_that_is_given_wins_over_a_default_that_depends_on_the_store() -> None:
    settings = load(log__url="s3://b/p", persist__hedge_after_percentile="off", view__enabled=True).settings
    assert settings.persist.hedge_after_percentile is None
    assert settings.view.enabled


def test_the_pool_is_twice_what_may_be_in_flight() -> None:
    assert load(persist__max_in_flight_requests=7).settings.persist.target_pool_size == 14


@pytest.mark.parametrize(
    ("url", "implied"),
    [
        (None, True),
        ("file:///srv/app/holdfast-data", True),
        ("memory:", True),
        ("file:///elsewhere", False),
        ("s3://b", False),
    ],
)
def test_only_memory_and_the_default_directory_may_begin_a_log_unasked(url: str | None, implied: bool) -> None:
    settings = (load() if url is None else load(log__url=url)).settings
    assert settings.log.init_implied is implied


def write(folder: Path, text: str, name: str = "holdfast.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default(tmp_path: Path) -> None:
    write(tmp_path, "[persist]\nbatch_timeout_ms = 2\nmax_in_flight_requests = 20\nretry_base_delay_ms = 30\n")
    environ = {"HOLDFAST_PERSIST__BATCH_TIMEOUT_MS": "3", "HOLDFAST_PERSIST__MAX_IN_FLIGHT_REQUESTS": "30"}
    found = load_configuration(flags={"persist.batch_timeout_ms": "4"}, environ=environ, working_directory=tmp_path)
    persist = found.settings.persist
    assert (persist.batch_timeout_ms, persist.max_in_flight_requests, persist.retry_base_delay_ms) == (4.0, 30, 30.0)
    why = {origin.key: (origin.source, origin.why) for origin in found.origins}
    assert why["persist.batch_timeout_ms"] == ("flag", "given on the command line")
    assert why["persist.max_in_flight_requests"] == ("env", "HOLDFAST_PERSIST__MAX_IN_FLIGHT_REQUESTS")
    assert why["persist.retry_base_delay_ms"] == ("file", f"{tmp_path / 'holdfast.toml'} line 4")
    assert why["persist.target_pool_size"] == ("default", "2 x persist.max_in_flight_requests")
    assert found.file == tmp_path / "holdfast.toml"


@pytest.mark.parametrize(("given", "expected"), [({}, "0660"), ({"server__socket_mode": "600"}, "0600")])
def test_the_mode_of_sockets_is_shown_as_a_person_writes_it(given: dict[str, object], expected: str) -> None:
    shown = next(each.value for each in load(**given).origins if each.key == "server.socket_mode")
    assert shown == expected
    assert load(server__socket_mode=shown).settings == load(**given).settings


def test_an_unknown_key_is_refused_and_the_nearest_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "[persist]\nbatch_timout_ms = 2\n[servers]\nmax_connections = 1\n")
    environ = {"HOLDFAST_LEADER__SIGN_INTERVAL": "3"}
    with pytest.raises(InvalidRequest) as caught:
        load_configuration(flags={"log.uri": "memory:"}, environ=environ, file=path, working_directory=tmp_path)
    text = str(caught.value)
    for nearest in ("persist.batch_timeout_ms?", "server.max_connections?", "leader.sign_interval_ms?", "log.url?"):
        assert f"did you mean {nearest}" in text


def test_a_variable_with_one_underscore_too_few_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"two underscores.*did you mean log\.url"):
        load_configuration(environ={"HOLDFAST_LOG_URL": "memory:"}, working_directory=tmp_path)


def test_variables_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    load_configuration(environ={"HOLDFAST_PROVE": "1", "HOLDFAST_URL": "x", "PATH": "/bin"}, working_directory=tmp_path)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "[leader]\nsign_interval_ms = -1\n[view]\nenabled = 'perhaps'\n")
    with pytest.raises(InvalidRequest, match=r"leader\.sign_interval_ms.*view\.enabled"):
        load_configuration(environ={}, file=path, working_directory=tmp_path)


@pytest.mark.parametrize("text", ["log.url = [", "url = 'memory:'", "[log]\nurl = { a = 1 }"])
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest):
        load_configuration(environ={}, file=write(tmp_path, text), working_directory=tmp_path)


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no configuration file at .*absent\.toml"):
        load_configuration(environ={"HOLDFAST_CONFIG": "absent.toml"}, working_directory=tmp_path)


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    found = load_configuration(
        flags={"server.tokens": [f"admin:{secret}", f"read:{secret}-2"]}, environ={}, working_directory=tmp_path
    )
    shown = repr(found)
    assert secret not in shown
    assert "admin:***, read:***" in shown
    with pytest.raises(InvalidRequest) as caught:
        load_configuration(flags={"server.tokens": f"boss:{secret}"}, environ={}, working_directory=tmp_path)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("scheme", ["s3", "ftp"])
def test_credentials_in_a_url_are_refused_without_being_repeated(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_configuration(
            flags={"log.url": f"{scheme}://key:sec@ret@bucket/prefix"}, environ={}, working_directory=tmp_path
        )
    assert "sec" not in str(caught.value)
    assert "bucket/prefix" in str(caught.value)


def test_a_working_directory_that_cannot_be_read_holds_no_file() -> None:
    unreadable = Path("/" + "x" * 300)
    assert load_configuration(environ={}, working_directory=unreadable).file is None
    with pytest.raises(InvalidRequest, match="no configuration file"):
        load_configuration(file=Path("holdfast.toml"), environ={}, working_directory=unreadable)
