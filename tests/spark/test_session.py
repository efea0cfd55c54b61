"""The session helper: a Java that fits, presets that hold, refusals that say what to do."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import InvalidRequest
from holdfast.spark import find_java, session


def java_home(root: Path, name: str, version: str) -> Path:
    home = root / name
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_wins_then_the_path_then_what_is_installed(tmp_path: Path) -> None:
    named = java_home(tmp_path, "named", "17.0.1")
    on_path = java_home(tmp_path, "on-path", "17.0.2")
    installed = java_home(tmp_path / "jvm", "java-17", "17.0.3").parent
    environment = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert find_java(environment, installed) == named
    assert find_java({"PATH": environment["PATH"]}, installed) == on_path
    assert find_java({"PATH": ""}, installed) == installed / "java-17"


def test_a_java_that_spark_does_not_run_on_is_passed_over(tmp_path: Path) -> None:
    newer = java_home(tmp_path, "java-25", "25")
    older = java_home(tmp_path, "java-8", "1.8.0_392")
    jvm = tmp_path / "jvm"
    java_home(jvm, "a-java-21", "21.0.2")
    fitting = java_home(jvm, "java-17", "17.0.15")
    assert find_java({"JAVA_HOME": str(newer), "PATH": str(older / "bin")}, jvm) == fitting


def test_no_fitting_java_says_what_was_found_and_how_to_mend_it(tmp_path: Path) -> None:
    newer = java_home(tmp_path, "java-25", "25")
    with pytest.raises(InvalidRequest, match=r"Java 17 or 21.*Java 25") as caught:
        find_java({"JAVA_HOME": str(newer), "PATH": ""}, tmp_path / "none")
    assert "openjdk-17" in caught.value.hint


def test_pandas_3_is_refused_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"pandas": "3.0.1"}[name])
    with pytest.raises(InvalidRequest, match=r"pandas=3\.0\.1") as caught:
        session()
    assert "<3" in caught.value.hint


def test_a_master_and_a_remote_address_contradict_each_other() -> None:
    with pytest.raises(InvalidRequest, match="not both"):
        session(master="local", remote="sc://localhost")


def test_presets_hold_in_the_running_session(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "4"
    assert spark.sparkContext.getConf().get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
