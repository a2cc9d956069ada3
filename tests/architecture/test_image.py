"""The image: a pinned base, no privileges, and only its state can be written (tests/host/test_image.py runs it so)."""

from __future__ import annotations

import re

import pytest

from tests.support.deployed import ROOT, compose_services

_IMAGE = (ROOT / "Dockerfile").read_text()


def test_the_base_is_pinned_by_its_content() -> None:
    [base] = re.findall(r"^ARG BASE=(.+)$", _IMAGE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.1[123]\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base)
    assert re.findall(r"^FROM (.+)$", _IMAGE, re.MULTILINE) == ["${BASE}"]
    assert "--require-hashes" in _IMAGE


def test_the_image_runs_as_a_user_without_privileges_and_reports_its_health() -> None:
    [user] = re.findall(r"^USER (.+)$", _IMAGE, re.MULTILINE)
    assert int(user) > 1000
    assert f"--uid {user} " in _IMAGE
    assert re.search(r"^HEALTHCHECK .*/v1/health/live", _IMAGE.replace("\\\n", ""), re.MULTILINE)


@pytest.mark.parametrize("name", ["release", "web", "worker", "scheduler", "shopper"])
def test_the_containers_can_write_only_their_state(name: str) -> None:
    service = compose_services()[name]
    volumes = ["var:/srv/purser/var", "signer-socket:/run/purser-signer:ro"]
    assert (service["tmpfs"], service["volumes"]) == (["/tmp"], volumes)  # noqa: S108 - in the container
