"""What a web process that was taken over asks the signer process to sign for EVM chains."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from eth_account import Account
from eth_utils.address import to_checksum_address
from sqlalchemy import select, update

from app.adapters.evm import signatures
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.contracts.deployments import PERMIT2
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.x402 import payments
from app.adapters.swaps import uniswap
from app.audit_log import actors
from app.core import clock, hpke
from app.core.chains import ETH, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.identity import owner_keys
from app.identity.models import OwnerKey
from app.owner import wallet_keys
from app.payments import treasury
from app.payments.treasury import WalletRole
from app.ports.errors import Rejected
from app.spending import holds
from app.wallets.core.models import KeyTransfer, SigningIntent
from tests.signer.conftest import BASE, Attacker
from tests.support.agents import register
from tests.support.chains import RECIPIENT
from tests.support.owners import person

OTHER = "0x00000000000000000000000000000000BADC0DE0"
_APPROVE = Function("fiat_token", "approve").encode(OTHER, 2**255)
_SOON = 2**31
WAIT = timedelta(days=3)


def test_a_recorded_transfer_is_signed_and_the_same_bytes_get_the_same_signature(attacker: Attacker) -> None:
    attacker.record()
    fields = attacker.fields()
    assert attacker.signed_by(fields) == attacker.agent.address
    assert attacker.ask(fields) == attacker.ask(fields)


def test_nothing_is_signed_that_was_not_recorded(attacker: Attacker) -> None:
    assert attacker.refusal(attacker.fields()) == "not_recorded"
    assert attacker.refusal(attacker.fields(), ids=["00000000-0000-4000-8000-000000000000"]) == "not_recorded"
    assert attacker.refusal(attacker.fields(), ids=["not an id"] * 100) == "not_recorded"


_RAW_USDC = bytes.fromhex(BASE.usdc[2:])
_RAW_OTHER = bytes.fromhex(OTHER[2:])


def test_no_other_transaction_than_the_recorded_one_is_signed(attacker: Attacker) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"to": OTHER}, "not_as_recorded"),
        ({"units": 5_000_001}, "not_as_recorded"),
        ({"units": 4_999_999}, "not_as_recorded"),
        ({"value": 1}, "not_as_recorded"),
        ({"data": b""}, "not_as_recorded"),
        ({"data": _APPROVE}, "not_as_recorded"),
        ({"chainId": 1}, "not_recorded"),
        ({"chainId": 900001}, "not_recorded"),
        ({"gas": 10**9}, "network_fee_too_high"),
        ({"type": 0}, "malformed"),
        ({"accessList": []}, "malformed"),
        ({"nonce": "0x0"}, "malformed"),
        ({"value": True}, "malformed"),
    ]
    attacker.record()
    for changed, reason in cases:
        assert attacker.refusal(attacker.fields(**changed)) == reason, changed


def test_no_contract_is_called_and_no_ether_sent_for_a_transfer_of_a_token(attacker: Attacker) -> None:
    attacker.record()
    for to, data in ((_RAW_OTHER, b""), (_RAW_OTHER, _APPROVE), (b"", b"\x60\x00")):
        fields = {**attacker.fields(), "to": to, "data": data, "value": 10**18 if to else 0}
        assert attacker.refusal(fields) in {"not_as_recorded", "malformed"}
    attacker.record(amount=TokenAmount(10**15, ETH), recipient=to_checksum_address(RECIPIENT))
    sent = {**attacker.fields(), "to": bytes.fromhex(RECIPIENT[2:]), "data": b"", "value": 10**15}
    assert attacker.refusal({**sent, "value": 10**15 + 1}) == "not_as_recorded"
    assert attacker.signed_by(sent) == attacker.agent.address


def test_an_intent_pays_once_and_its_replacements_differ_in_the_fee_alone(attacker: Attacker) -> None:
    attacker.record()
    attacker.ask(attacker.fields())
    assert attacker.refusal(attacker.fields(nonce=1)) == "signed_before"
    assert attacker.refusal(attacker.fields(to=OTHER)) == "not_as_recorded"
    assert attacker.signed_by(attacker.fields(maxFeePerGas=2 * 10**9)) == attacker.agent.address
    empty = {**attacker.fields(), "to": bytes.fromhex(attacker.agent.address[2:]), "data": b""}
    assert attacker.signed_by(empty) == attacker.agent.address
    assert attacker.refusal({**empty, "nonce": 1}) == "signed_before"
    assert attacker.refusal({**empty, "value": 1}) == "not_as_recorded"


def test_two_open_intents_have_no_nonce_in_common(attacker: Attacker) -> None:
    first = attacker.record()
    attacker.ask(attacker.fields())
    second = attacker.record(units=4_000_000)
    assert attacker.refusal(attacker.fields(units=4_000_000), ids=[second]) == "nonce_in_use"
    assert attacker.signer.client.withdraw([first])[first]["nonce"] == 0
    attacker.ask(attacker.fields(units=4_000_000), ids=[second])
    assert attacker.refusal(attacker.fields(), ids=[first]) == "withdrawn"


def test_a_hold_that_is_missing_released_too_small_or_another_wallet_s_covers_nothing(attacker: Attacker) -> None:
    attacker.record(held_nanos=None)
    attacker.record(held_nanos=1)
    released = attacker.record()
    with unit_of_work() as session:
        holds.release(session, released)
    assert attacker.refusal(attacker.fields()) == "hold_missing"
    other = register(attacker.app.test_client())
    foreign = attacker.record(wallet_id=other.wallet_id)
    attacker.record(held_nanos=None, hold_id=foreign)
    assert attacker.refusal(attacker.fields()) == "hold_missing"


def test_one_hold_covers_one_payment(attacker: Attacker) -> None:
    held = attacker.record()
    second = attacker.record(held_nanos=None, hold_id=held)
    attacker.ask(attacker.fields(), ids=[held])
    assert attacker.refusal(attacker.fields(nonce=1), ids=[second]) == "hold_missing"


def test_a_wallet_of_the_service_pays_with_a_hold_too(attacker: Attacker) -> None:
    wallet = treasury.wallet(WalletRole.TREASURY, ChainName.BASE)
    attacker.record(wallet_id=wallet.id, held_nanos=None)
    assert attacker.refusal(attacker.fields(), wallet=wallet.id) == "hold_missing"


def test_an_intent_of_one_wallet_is_not_signed_by_another(attacker: Attacker) -> None:
    attacker.record()
    other = register(attacker.app.test_client())
    assert attacker.refusal(attacker.fields(), wallet=other.wallet_id) == "not_recorded"
    assert attacker.refusal(attacker.fields(), wallet=attacker.ids[0]) == "not_recorded"


def test_a_wallet_of_an_agent_signs_no_submission_of_the_service(attacker: Attacker) -> None:
    for kind in ("settlement", "sponsored", "opening"):
        attacker.record(kind=kind, held_nanos=None, recipient=BASE.multicall3)
    fields = {**attacker.fields(), "to": bytes.fromhex(BASE.multicall3[2:]), "data": b"\x82\xad\x56\xcb"}
    assert attacker.refusal(fields) == "not_of_the_service"


@pytest.mark.parametrize("kind", ["swap", "bridge_leg"])
def test_swaps_and_bridges_call_their_contracts_for_the_wallet_itself_alone(attacker: Attacker, kind: str) -> None:
    attacker.record(kind=kind, recipient=attacker.agent.address, minimum_units=1)
    messenger = bytes.fromhex("28b5a0e9C621a5BadaA536219b3a228C8168cf5d")
    burn = Function("cctp_messenger", "depositForBurn")
    for to, data in (
        (_RAW_OTHER, b""),
        (_RAW_USDC, _APPROVE),
        (_RAW_USDC, attacker.fields()["data"]),
        (bytes.fromhex(BASE.uniswap_router[2:]), attacker.fields()["data"]),
        (messenger, burn.encode(5_000_000, 0, bytes(12) + _RAW_OTHER, BASE.usdc, bytes(32), 0, 1000)),
        (messenger, burn.encode(5_000_001, 0, _own_word(attacker), BASE.usdc, bytes(32), 0, 1000)),
    ):
        reason = attacker.refusal({**attacker.fields(), "to": to, "data": data})
        assert reason in {"not_as_recorded", "contract_not_used", "allowance_too_high"}
    if kind == "bridge_leg":
        burned = burn.encode(5_000_000, 0, _own_word(attacker), BASE.usdc, bytes(32), 0, 1000)
        assert attacker.signed_by({**attacker.fields(), "to": messenger, "data": burned}) == attacker.agent.address


def _own_word(attacker: Attacker) -> bytes:
    return bytes(12) + bytes.fromhex(attacker.agent.address[2:])


def authorization(attacker: Attacker, *, to: str = RECIPIENT, units: int = 5_000_000, until: int = 0) -> dict[str, Any]:
    values = [attacker.agent.address, to, units, 0, until, b"\x07" * 32]
    domain = payments.usdc_domain(BASE)
    return {"struct": payments.TRANSFER_STRUCT, "values": values, "domain": fields_of(domain)}


def fields_of(domain: SigningDomain) -> dict[str, Any]:
    return {
        "name": domain.name, "version": domain.version, "chain_id": domain.chain_id, "contract": domain.contract
    }  # fmt: skip


def test_an_authorization_pays_what_was_recorded_once_and_not_besides_a_transaction(attacker: Attacker) -> None:
    attacker.record(kind="x402")
    for changed in ({"to": OTHER}, {"units": 6_000_000}, {"until": _SOON}):
        assert attacker.refusal(authorization(attacker, **changed)) in {"not_as_recorded", "valid_too_long"}
    content = authorization(attacker)
    y_parity, r, s = attacker.ask(content)
    message = signatures.typed_message(content["struct"], content["values"], payments.usdc_domain(BASE))
    signature = "0x" + (r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([27 + y_parity])).hex()
    assert signatures.signer_of(message, signature) == attacker.agent.address
    again = {**content, "values": [*content["values"][:-1], b"\x08" * 32]}
    assert attacker.refusal(again) == "signed_before"
    assert attacker.refusal(attacker.fields()) == "signed_before"


def test_a_domain_of_another_contract_or_chain_is_not_signed(attacker: Attacker) -> None:
    attacker.record(kind="x402")
    content = authorization(attacker)
    for changed in ({"contract": OTHER}, {"chain_id": 1}, {"name": "Other"}, {"version": "1"}):
        assert attacker.refusal({**content, "domain": {**content["domain"], **changed}}).startswith("not_")
    assert attacker.refusal({**content, "struct": "Any(uint256 value)", "values": [1]}) == "struct_not_used"


def test_what_cannot_be_encoded_or_decoded_is_a_refusal_and_not_an_outage(attacker: Attacker) -> None:
    attacker.record(kind="x402")
    content = authorization(attacker)
    for changed in ({"values": [{}, [], 5, 0, 9, "zz"]}, {"domain": {**content["domain"], "chain_id": -1}}):
        assert attacker.refusal({**content, **changed}) == "malformed"
    swap = attacker.record(kind="swap", minimum_units=1)
    fields = {
        **attacker.fields(),
        "to": bytes.fromhex(BASE.uniswap_router[2:]),
        "data": uniswap.MULTICALL.encode(1, []),
    }
    assert attacker.refusal(fields, ids=[swap]) == "malformed"
    assert attacker.signer.client.refusals() == 3


def permit(attacker: Attacker, spender: str, units: int) -> dict[str, Any]:
    values = [attacker.agent.address, spender, units, 0, 0]
    return {"struct": payments.PERMIT_STRUCT, "values": values, "domain": fields_of(payments.usdc_domain(BASE))}


@pytest.mark.parametrize(("kind", "spender"), [("x402", PERMIT2), ("swap", BASE.uniswap_router)])
def test_no_allowance_is_higher_than_recorded_or_given_to_another_contract(
    attacker: Attacker, kind: str, spender: str
) -> None:
    attacker.record(kind=kind)
    assert attacker.refusal(permit(attacker, spender, 5_000_001)) == "allowance_too_high"
    assert attacker.refusal(permit(attacker, OTHER, 1)) == "contract_not_used"
    attacker.ask(permit(attacker, spender, 5_000_000))


def test_a_transfer_gives_no_allowance(attacker: Attacker) -> None:
    attacker.record()
    for spender in (PERMIT2, BASE.uniswap_router, OTHER):
        assert attacker.refusal(permit(attacker, spender, 1)) == "contract_not_used"


def test_who_can_only_write_to_the_database_records_nothing(attacker: Attacker) -> None:
    attacker.record()
    with db.engine.begin() as connection:
        connection.execute(update(SigningIntent).values(recipient=OTHER))
    assert attacker.refusal(attacker.fields(to=OTHER)) == "row_changed"


def test_another_chain_than_the_recorded_one_is_refused(attacker: Attacker) -> None:
    attacker.record(chain=ChainName.ETHEREUM)
    assert attacker.refusal(attacker.fields()) == "not_recorded"


@pytest.mark.parametrize(
    "lacking", ["a request", "the waiting time", "the request's own id", "an announcement", "an early announcement"]
)
def test_no_phrase_is_sealed_that_no_owner_has_asked_for(attacker: Attacker, lacking: str) -> None:
    made = attacker.app.test_client().post("/v1/agents/register", json={}).get_json()
    person(attacker.app).claim(made)
    wallet_id = made["wallet"]["id"]
    with read_only_unit() as session:
        owner_key_id = session.scalars(select(OwnerKey.id)).one()
    wait = timedelta(hours=1 if lacking == "the waiting time" else -1)
    transfer = KeyTransfer(
        id=new_id(), owner_key_id=owner_key_id, wallet_id=wallet_id, valid_from=clock.now() + wait,
        expires_at=clock.now() + timedelta(days=1),
    )  # fmt: skip
    if lacking != "a request":
        with unit_of_work() as session:
            session.add(transfer)
    if lacking != "an announcement":
        with time_machine.travel(clock.now() - (WAIT / 2 if lacking == "an early announcement" else WAIT)):
            attacker.signer.client.announce_export(wallet_id, transfer.id)
    named = new_id() if lacking == "the request's own id" else transfer.id
    _private, public = hpke.new_key()
    info = f"purser export\n{wallet_id}\n{named}"
    with pytest.raises(Rejected, match=r"^not_recorded$|^not_as_recorded$|^not_announced$"):
        attacker.signer.client.ask("export", row_id=wallet_id, recipient=public, info=info)


def test_an_owner_gets_the_phrase_that_only_the_signer_can_open(attacker: Attacker) -> None:
    made = attacker.app.test_client().post("/v1/agents/register", json={}).get_json()
    person(attacker.app).claim(made)
    wallet_id, (private, public), actor = made["wallet"]["id"], hpke.new_key(), actors.shell_actor()
    with unit_of_work() as session:
        owner = owner_keys.lock_owner(session, session.scalars(select(OwnerKey.agent_id)).one())
    wallet_keys.request_export(actor, owner, wallet_id)
    with time_machine.travel(clock.now() + WAIT + timedelta(seconds=1)):
        sealed, taken = wallet_keys.take(actor, owner, wallet_id, public)
    words = hpke.unseal(sealed, private, f"purser export\n{wallet_id}\n{taken.id}").decode()
    Account.enable_unaudited_hdwallet_features()
    assert Account.from_mnemonic(words).address == made["wallet"]["addresses"]["base"]
