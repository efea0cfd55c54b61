"""The files for operators name only commands, options, settings, paths and metrics that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from holdfast.cli.main import application
from holdfast.cli.output import Exit
from holdfast.settings import KEYS, load_configuration

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RECORDED = ROOT / "tests" / "compat" / "surface" / "metrics.txt"
ENVIRONMENT = {key.environment_name for key in KEYS} | {"HOLDFAST_CONFIG", "HOLDFAST_TOKEN", "HOLDFAST_URL"}
METRIC = re.compile(r"\b(?:holdfast|process)_[a-z_]+\b")
RUNBOOKS = ROOT / "docs" / "how-to" / "operate" / "runbooks.md"


def require_command(words: list[str]) -> None:
    """Fail unless ``holdfast`` has this command with these options."""
    group: Any = typer.main.get_command(application())
    names = [*words]
    while hasattr(group, "commands"):
        assert names, f"`holdfast {shlex.join(words)}` names no command"
        assert names[0] in group.commands, f"there is no command {names[0]} in `holdfast {shlex.join(words)}`"
        group = group.commands[names.pop(0)]
    group.make_context(group.name, names, resilient_parsing=False)


def require_environment(names: Iterator[str] | list[str]) -> None:
    for name in names:
        if name.startswith("HOLDFAST_"):
            assert name in ENVIRONMENT, f"there is no setting for {name}"


def documents(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def known_metrics() -> set[str]:
    known: set[str] = set()
    for line in RECORDED.read_text().splitlines():
        name, kind, *_ = line.split()
        known |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return known


def require_metrics(query: str) -> None:
    names = set(METRIC.findall(query))
    assert names, query
    assert names <= known_metrics(), query


def test_the_container_file_copies_what_exists_and_runs_a_command() -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    for name, rest in steps:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
        if name == "ENV":
            require_environment([pair.partition("=")[0] for pair in rest.split()])
    (entry,) = [json.loads(rest) for name, rest in steps if name == "ENTRYPOINT"]
    (command,) = [json.loads(rest) for name, rest in steps if name == "CMD"]
    assert entry == ["holdfast"]
    require_command(command)
    assert any(name == "USER" and rest != "root" for name, rest in steps)


def test_the_compose_file_starts_services_that_accept_their_configuration(tmp_path: Path) -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    served = [each for each in compose["services"].values() if "build" in each]
    assert len(served) == 2
    for service in served:
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        assert set(service["depends_on"]) <= set(compose["services"])
        require_command(service["command"])
        environment = {name: str(value) for name, value in service["environment"].items()}
        require_environment(list(environment))
        load_configuration(environ=environment, flags={"server.listen": "0.0.0.0:8080"}, working_directory=tmp_path)


def test_the_kubernetes_manifest_runs_a_command_that_accepts_its_configuration(tmp_path: Path) -> None:
    kinds = {each["kind"]: each for each in documents(DEPLOY / "kubernetes" / "holdfast.yaml")}
    pod = kinds["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    require_command(container["args"])
    given = {each["name"]: each for each in container["env"]}
    require_environment(list(given))
    secret = kinds["Secret"]
    reference = given["HOLDFAST_SERVER__TOKENS"]["valueFrom"]["secretKeyRef"]
    assert reference["name"] == secret["metadata"]["name"]
    environment = {
        name: each["value"].replace("$(POD_NAME)", "holdfast-0") for name, each in given.items() if "value" in each
    }
    environment["HOLDFAST_SERVER__TOKENS"] = secret["stringData"][reference["key"]]
    load_configuration(environ=environment, flags={"server.listen": "0.0.0.0:8080"}, working_directory=tmp_path)
    services = {
        each["metadata"]["name"]: each["spec"]
        for each in documents(DEPLOY / "kubernetes" / "holdfast.yaml")
        if each["kind"] == "Service"
    }
    pods = services[kinds["StatefulSet"]["spec"]["serviceName"]]
    assert pods["clusterIP"] == "None" and pods["publishNotReadyAddresses"] is True, "a standby has a name, too"
    assert environment["HOLDFAST_SERVER__ADVERTISED_ADDRESS"] == "holdfast-0.holdfast-pods:8080"
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        assert get["path"] in ("/livez", "/readyz")
        assert get["port"] in ports
    labels = kinds["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert all(service["selector"] == labels for service in services.values())
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert pod["terminationGracePeriodSeconds"] > 30
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / "holdfast.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_starts_a_command_and_does_not_restart_what_a_restart_cannot_fix() -> None:
    (start,) = unit()["ExecStart"]
    require_command(start.split()[1:])
    (never,) = unit()["RestartPreventExitStatus"]
    assert {int(code) for code in never.split()} == {Exit.BAD_REQUEST, 5}
    (stop,) = unit()["TimeoutStopSec"]
    (drain,) = [key.default for key in KEYS if key.name == "server.drain_seconds_max"]
    assert isinstance(drain, float)
    assert int(stop) > drain


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "holdfast.service").read_text()
    # The program need not be installed here.
    (tmp_path / "holdfast.service").write_text(text.replace("/opt/holdfast/bin/holdfast", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "holdfast.service")], capture_output=True, text=True
    )
    complaints = [line for line in done.stderr.splitlines() if "holdfast.service" in line]
    assert not complaints, done.stderr
    assert done.returncode == 0, done.stderr


def alerts() -> list[dict[str, Any]]:
    (rules,) = documents(DEPLOY / "prometheus" / "alerts.yaml")
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_every_alert_asks_for_metrics_of_the_service_and_has_a_runbook() -> None:
    headings = set(re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE))
    for rule in alerts():
        require_metrics(rule["expr"])
        assert rule["alert"] in headings, f"{rule['alert']} has no runbook"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


@pytest.mark.program("promtool")
def test_prometheus_accepts_the_rules() -> None:
    rules = str(DEPLOY / "prometheus" / "alerts.yaml")
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_current_and_shows_metrics_of_the_service() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "make_dashboard.py"), "--check"]
    assert subprocess.run(check).returncode == 0
    board = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 30
    for query in queries:
        require_metrics(query)


def test_the_page_of_metrics_and_log_events_is_current() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "make_metrics_page.py"), "--check"]
    assert subprocess.run(check).returncode == 0


def test_the_policies_allow_what_the_service_does_and_protect_the_log() -> None:
    policies = {path.stem: json.loads(path.read_text())["Statement"] for path in (DEPLOY / "s3-policies").iterdir()}
    actions = {
        action
        for each in policies["leader"]
        for action in ([each["Action"]] if isinstance(each["Action"], str) else each["Action"])
    }
    assert actions == {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"}
    assert all(each["Effect"] == "Deny" for each in policies["bucket"])
    puts, deletes = policies["bucket"]
    assert puts["Condition"]["Null"] == {"s3:if-none-match": "true"}
    assert any(resource.endswith("/batches/*") for resource in puts["Resource"])
    assert deletes["Resource"].endswith("/batches/*")
    assert "aws:PrincipalArn" in deletes["Condition"]["StringNotEquals"]
