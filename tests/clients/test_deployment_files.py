"""The Helm chart, rendered by Helm and valid for Kubernetes, and the queries of alerts and dashboards."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import Any

import pytest

from app.config import Settings, UpstreamAccess
from app.version import VERSION
from launcher.procfile import read_procfile
from tests.support.deployed import ROOT, compose_services, queries
from tests.support.published import PROGRAMS, make_python

CHART = ROOT / "deploy" / "helm" / "purser"
VALUES: dict[str, Any] = {
    "secretName": "purser",
    "settings": {"NETWORK": "mainnet", "BASE_URL": "https://purser.example", "LOG_LEVEL": "WARNING"},
    "shopper": {"replicas": 1},
    "ingress": {"enabled": True, "host": "purser.example", "tlsSecretName": "tls", "className": "nginx"},
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]},
}
_PROCESSES = ("web", "worker", "shopper", "scheduler")


def checked(*arguments: str, given: Any) -> Any:
    python = make_python(PROGRAMS / "deploy.txt")
    command = [str(python), str(PROGRAMS / "deploy_files.py"), *arguments]
    ran = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def with_setting(name: str) -> dict[str, Any]:
    return {**VALUES, "settings": {**VALUES["settings"], name: "x"}}


_FIELDS = {**Settings.model_fields, **UpstreamAccess.model_fields}
# The URL of a chain endpoint contains its key.
SECRETS = {
    name.upper() for name, field in _FIELDS.items() if "SecretStr" in str(field.annotation) or name.endswith("_rpc_url")
}
OTHERS = {name.upper() for name in _FIELDS} - SECRETS - {"NETWORK", "BASE_URL", "PORT", "UPSTREAMS"}


SIGNER: dict[str, Any] = {**VALUES, "signer": {"enabled": True, "secretName": "purser-signer"}}
INVALID: dict[str, dict[str, Any]] = {
    "a signer without a secret": {**SIGNER, "signer": {"enabled": True}},
    "keys of wallets outside of the signer": {
        **SIGNER,
        "settings": {**VALUES["settings"], "WALLET_ENCRYPTION_KEYS": "w1:file:///key"},
    },
    "no secret": {**VALUES, "secretName": ""},
    "the sandbox": {**VALUES, "settings": {**VALUES["settings"], "NETWORK": "sandbox"}},
    "an unknown value": {**VALUES, "replicas": 3},
    "an ingress without a host": {**VALUES, "ingress": {"enabled": True}},
    "a tag as digest": {**VALUES, "image": {"digest": "latest"}},
    "no peers": {**VALUES, "networkPolicy": {"from": []}},
    **{name: with_setting(name) for name in sorted(SECRETS)},
}


@cache
def chart() -> dict[str, Any]:
    every = {**VALUES, "settings": {**VALUES["settings"], **dict.fromkeys(OTHERS, "x")}}
    found: dict[str, Any] = checked("chart", str(CHART), given=[VALUES, every, SIGNER, *INVALID.values()])
    return found


@pytest.fixture
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of the chart by kind and name, without the name of the release."""
    rendered = chart()["rendered"][0]
    assert isinstance(rendered, list), rendered
    return {(each["kind"], each["metadata"]["name"].removeprefix("shop-")): each for each in rendered}


def container_of(found: dict[str, Any]) -> dict[str, Any]:
    [container] = found["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_the_chart_has_no_findings_and_the_version_of_the_service() -> None:
    assert chart()["lint"] == []
    assert (chart()["metadata"]["version"], chart()["metadata"]["appVersion"]) == (VERSION, VERSION)


def test_the_chart_runs_the_processes_of_the_procfile(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    commands = read_procfile(ROOT / "Procfile")
    names = {("Job", "release"), *(("Deployment", name) for name in _PROCESSES)}
    assert {key for key in objects if key[0] in {"Job", "Deployment"}} == names
    for _, name in names:
        [found] = [each for (kind, own), each in objects.items() if own == name and kind in {"Job", "Deployment"}]
        container = container_of(found)
        assert tuple(container["args"]) == commands[name]
        assert container["image"] == f"purser@{VALUES['image']['digest']}"
        assert container["envFrom"] == [{"secretRef": {"name": "purser"}}]
        assert not {each["name"] for each in container["env"]} & SECRETS
        assert VALUES["settings"].items() <= {each["name"]: each["value"] for each in container["env"]}.items()
    hooks = objects["Job", "release"]["metadata"]["annotations"]
    assert hooks["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert objects["Deployment", "scheduler"]["spec"]["replicas"] == 1


def test_no_pod_has_privileges(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    for (kind, name), found in objects.items():
        if kind not in {"Job", "Deployment"}:
            continue
        pod = found["spec"]["template"]["spec"]
        assert container_of(found)["securityContext"] == {
            "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
        }, name  # fmt: skip
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"]["type"] == (
            "Unconfined" if name == "shopper" else "RuntimeDefault"
        )
        assert pod["automountServiceAccountToken"] is False
        assert {volume["name"] for volume in pod["volumes"]} == {"var", "tmp"}


def test_probes_restart_what_does_not_respond_and_route_to_what_can_serve(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    web = container_of(objects["Deployment", "web"])
    assert web["livenessProbe"]["httpGet"] == {"path": "/v1/health/live", "port": "http"}
    assert web["readinessProbe"]["httpGet"] == {"path": "/v1/health", "port": "http"}
    for name in ("worker", "shopper"):
        container = container_of(objects["Deployment", name])
        assert "livenessProbe" not in container  # Redis may be away
        check = compose_services()[name]["healthcheck"]["test"]
        assert container["readinessProbe"]["exec"]["command"] == check[1:]


def test_disruptions_and_connections_are_limited(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    for name in ("web", "worker"):
        assert objects["PodDisruptionBudget", name]["spec"]["maxUnavailable"] == 1
    assert objects["NetworkPolicy", "web"]["spec"]["ingress"][0]["ports"] == [{"port": "http"}]
    everything = objects["NetworkPolicy", "shop"]["spec"]
    assert "ingress" not in everything
    assert everything["policyTypes"] == ["Ingress", "Egress"]


def test_invalid_values_and_secrets_among_the_settings_are_refused() -> None:
    _, every, _, *others = chart()["rendered"]
    assert isinstance(every, list), every
    accepted = [name for name, found in zip(INVALID, others, strict=True) if isinstance(found, list)]
    assert accepted == []
    assert {"DATABASE_URL", "ENCRYPTION_KEYS", "OPENAI_API_KEY"} <= INVALID.keys()


def test_each_pod_that_signs_has_a_signer_with_a_secret_of_its_own() -> None:
    rendered = chart()["rendered"][2]
    assert isinstance(rendered, list), rendered
    pods = {each["metadata"]["name"].removeprefix("shop-"): each for each in rendered if "template" in each["spec"]}
    assert set(pods) == {*_PROCESSES, "release"}
    for name, found in pods.items():
        pod, container = found["spec"]["template"]["spec"], container_of(found)
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        if name == "release":
            assert "initContainers" not in pod
            continue
        [signer] = pod["initContainers"]
        assert signer["restartPolicy"] == "Always"
        assert signer["envFrom"] == [{"secretRef": {"name": "purser-signer"}}]
        assert {each["name"] for each in signer["env"]} == {
            "NETWORK", "LOG_LEVEL", "SIGNER_SOCKET", "SIGNER_CLIENT_UIDS"
        }  # fmt: skip
        assert container["envFrom"] == [{"secretRef": {"name": "purser"}}]
        assert {"name": "SIGNER_SOCKET", "value": "/run/purser-signer/own/socket"} in container["env"]
        assert signer["securityContext"] == {**container["securityContext"], "runAsUser": 10002}
        assert mounts["signer-socket"]["readOnly"]
        assert not {"signer-key", "signer-tmp"} & mounts.keys()
        assert "purser-signer" not in str(container).replace("/run/purser-signer", "")


def test_every_query_is_valid_promql() -> None:
    found = [query for query, _ in queries()]
    assert len(found) > 40
    assert checked("queries", given=found) == {}
    assert checked("queries", given=["sum("]) != {}
