"""Keyed digests are stored: they must not change, and one purpose must not reveal another's."""

from __future__ import annotations

from app.core.identifiers import keyed_digests


def test_stored_digests_stay_valid() -> None:
    [digest] = keyed_digests("shopping", b"an order", ["a secret"])
    assert digest.hex() == "f4efdde6039f9358e683981a3fc3fc2d86ca612ca63fc5232d20971580a63259"


def test_each_purpose_and_each_secret_has_its_own_digest() -> None:
    digests = [
        digest for purpose in ("shopping", "purchases") for digest in keyed_digests(purpose, b"x", ["new", "old"])
    ]
    assert len(set(digests)) == 4
