"""The acts of the signer process: making and checking wallets' keys, and signing what was recorded."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import bindparam, select

from app.authenticated import RowChanged, RowSeal, seal_of
from app.capacity.single_flight_cache import SingleFlightCache
from app.core import clock
from app.core.chains import USDC, ChainName, token_named
from app.core.money import TokenAmount
from app.db.group_commit import KeptConnection
from app.db.prepared import PreparedRead
from app.db.tables import table_of
from app.db.unit_of_work import read_only_unit
from app.payments.treasury import OWNER_AGENT_ID
from app.ports.errors import Rejected
from app.ports.vault import SecretLocation, Signer
from app.spending.holds import SpendingHoldState
from app.spending.models import SpendingHold
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.lifecycle import TransactionType
from app.wallets.core.models import KeyTransfer, SigningIntent, Wallet, WalletKey
from signer import evm_checks, solana_checks
from signer.intended import Intended, Refused, Signable, require
from signer.journal import Journal

_log = structlog.get_logger(__name__)
_MAX_INTENTS = 20
_OPEN_SECONDS = 60
"""How long an opened key is kept; what opens it again stays in the process anyway."""
_NANOS_PER_USDC_UNIT = 1000
_LEAST_PERCENT = 90
"""The least share of a USDC payment that its hold must cover: a hold has the dollar value at the market's price."""
_LOSSES = frozenset({"swap", "bridge_leg"})
"""Kinds that count only their loss or fee against the limits."""
_INTENTS, _WALLETS, _KEYS, _HOLDS = (table_of(each) for each in (SigningIntent, Wallet, WalletKey, SpendingHold))
_INTENT = seal_of(SigningIntent)
_WALLET = RowSeal(Wallet, id="wallet_key", mac="wallet_mac")
_HOLD = RowSeal(SpendingHold, **{column.key: f"hold_{column.key}" for column in _HOLDS.columns})
_QUERY = PreparedRead(
    select(
        *_INTENT.columns, _INTENTS.c.closed_at, *_WALLET.columns, _KEYS.c.sealed, *_HOLD.columns,
        _HOLDS.c.state.label("held_state"),
    )
    .select_from(_INTENTS)
    .join(_WALLETS, _WALLETS.c.id == _INTENTS.c.wallet_id)
    .join(_KEYS, _KEYS.c.wallet_id == _INTENTS.c.wallet_id)
    .outerjoin(_HOLDS, _HOLDS.c.reference == _INTENTS.c.hold_id)
    .where(_INTENTS.c.id == bindparam("of_intent"), _INTENTS.c.wallet_id == bindparam("of_wallet"))
)  # fmt: skip


class SignerService:
    def __init__(self, journal: Journal) -> None:
        self.journal, self._reads, self._lock = journal, KeptConnection(), threading.Lock()
        self._opened = SingleFlightCache()
        self.acts: Mapping[str, Callable[..., Any]] = {
            "ping": lambda: True, "sign": self.sign, "withdraw": journal.close, "signed": journal.signed_since,
            "create": _create, "import": _import, "seal": _seal, "check": _check, "refusals": journal.refusals,
            "import_key": _import_key, "import_phrase": self.import_phrase,
            "announce_export": self.announce_export, "export": self.export,
        }  # fmt: skip

    def sign(self, wallet: str, intents: Sequence[str], content: Mapping[str, Any]) -> Any:
        """Return the signature of a content that carries out recorded intents of a wallet. Raises: Refused."""
        try:
            sealed, candidates = self._read(wallet, intents)
            # Before the journal: what its key service cannot open was not signed.
            signer = self._open(wallet, sealed, candidates[0])
            signable = self._recorded(candidates, content)
        except Refused as refusal:
            _log.error("signature_refused", wallet_id=wallet, intents=list(intents)[:_MAX_INTENTS], reason=str(refusal))
            raise
        if "message" in content:
            return signer.sign_message(_bytes(content["message"])).hex()
        return signer.sign_digest(signable.digest, content)

    def _open(self, wallet_id: str, sealed: str, of: Intended) -> Signer:
        """Open a wallet's key, or use one opened shortly before. Raises: Refused, Rejected, KeyServiceUnavailable."""
        addresses = of.evm_address, of.solana_address

        def load() -> Signer:
            return app_state().ports.vault.signer(sealed, custody.key_location(wallet_id), addresses=addresses)

        signer: Signer = self._opened.get((wallet_id, sealed), load, ttl_seconds=_OPEN_SECONDS, failure_ttl_seconds=0)
        require(signer.evm_address == of.evm_address, "wrong_key")
        return signer

    def _recorded(self, candidates: Sequence[Intended], content: Mapping[str, Any]) -> Signable:
        network = app_state().settings.network.value
        try:
            if "message" in content:
                found = solana_checks.check_message(_bytes(content["message"]), candidates, network)
            elif "struct" in content:
                found = evm_checks.check_typed(content, candidates, network)
            else:
                found = evm_checks.check_transaction(content, candidates, network)
        except Refused:
            raise
        except Exception:  # the checks read nothing but the content, so no outage is hidden
            raise Refused("malformed") from None
        refusal = Refused("not_recorded")
        for signable in found:
            try:
                self.journal.record(signable)
            except Refused as reason:
                refusal = reason
                continue
            return signable
        raise refusal

    def _read(self, wallet_id: str, intents: Sequence[str]) -> tuple[str, list[Intended]]:
        """Return a wallet's sealed key, and intents with their holds, as they are committed. Raises: Refused."""
        require(0 < len(intents) <= _MAX_INTENTS, "not_recorded")
        try:
            named = [{"of_intent": str(UUID(each)), "of_wallet": str(UUID(wallet_id))} for each in intents]
        except (ValueError, AttributeError):
            raise Refused("not_recorded") from None
        with self._lock:
            rows = [row for each in named for row in self._reads.read(_QUERY, each) if row.closed_at is None]
        for row in rows:
            for seal in (_WALLET, _INTENT) if row.held_state is None else (_WALLET, _INTENT, _HOLD):
                if not seal.is_authentic(row, remembers=seal is _WALLET):
                    seal.refusal(seal.id_of(row))
                    raise Refused("row_changed")
        require(bool(rows), "not_recorded")
        return rows[0].sealed, [_intended(row) for row in rows]

    def import_phrase(self, row_id: str, phrase: str, key: str, import_id: str, info: str) -> Sequence[str]:
        """Make one wallet of a phrase, which is in clear in this process alone. Raises: Refused, Rejected."""
        self.journal.use_import(str(UUID(import_id)), str(UUID(row_id)))
        place, at = custody.key_location(row_id), custody.import_location(import_id)
        try:
            made = app_state().ports.vault.import_phrase(place, phrase, info, key, at)
        except ValueError:
            raise Rejected("not_a_phrase") from None
        return made.wallet_id, made.sealed, made.evm_address, made.solana_address

    def announce_export(self, wallet: str, request: str) -> None:
        """Begin the waiting time of an owner's request by this process's clock: rows can be forged."""
        _log.warning("export_announced", wallet_id=str(UUID(wallet)), request_id=str(UUID(request)))
        self.journal.announce_export(wallet, request)

    def export(self, row_id: str, recipient: str, info: str) -> str:
        """Seal a wallet's phrase for its owner, whose request was announced and has waited. Raises: Refused."""
        now = clock.now()
        with read_only_unit() as session:
            found = session.scalars(select(KeyTransfer).where(KeyTransfer.wallet_id == row_id)).one_or_none()
            require(found is not None, "not_recorded")
            assert found is not None  # noqa: S101 - for the type checker
            try:
                seal_of(KeyTransfer).verify(session, found)
            except RowChanged:
                raise Refused("row_changed") from None
            is_open = found.valid_from <= now < found.expires_at
            require(is_open and info == f"purser export\n{row_id}\n{found.id}", "not_as_recorded")
        until = int(now.timestamp()) - app_state().settings.wallet_export_wait_seconds
        require(self.journal.is_announced(row_id, found.id, until=until), "not_announced")
        return custody.seal_phrase(row_id, recipient, info)


def _intended(row: Any) -> Intended:
    amount, is_service = TokenAmount(row.amount_units, token_named(row.currency)), row.agent_id == OWNER_AGENT_ID
    # As anything else, a foreign token would be taken for a known one.
    require(amount.token.contract is None or row.kind == TransactionType.WITHDRAWAL, "not_as_recorded")
    least_nanos = 0
    if amount.token == USDC and row.kind not in _LOSSES:
        least_nanos = amount.units * _NANOS_PER_USDC_UNIT * _LEAST_PERCENT // 100
    # Only the transactions of one bridge have a hold in common.
    is_own = row.hold_id == row.id or row.kind == "bridge_leg"
    is_covered = (
        is_own and row.held_state == SpendingHoldState.HELD and row.hold_wallet_id == row.wallet_id
        and row.hold_amount_nanos >= least_nanos and not row.hold_paid_by_credits
    )  # fmt: skip
    return Intended(
        row.id, row.wallet_id, row.kind, ChainName(row.chain), row.recipient, amount, row.minimum_units,
        row.evm_address, row.solana_address, is_service=is_service, is_covered=is_covered,
    )  # fmt: skip


def _create(row_id: str) -> Sequence[str]:
    made = app_state().ports.vault.create_wallet(custody.key_location(row_id))
    return made.wallet_id, made.sealed, made.evm_address, made.solana_address


def _import(row_id: str, evm: str | None, solana: str | None) -> Sequence[str]:
    keys = [None if key is None else _bytes(key) for key in (evm, solana)]
    made = app_state().ports.vault.import_wallet(custody.key_location(row_id), evm=keys[0], solana=keys[1])
    return made.wallet_id, made.sealed, made.evm_address, made.solana_address


def _import_key(import_id: str) -> Sequence[str]:
    """Make the key that an owner's browser seals a phrase for; only this process opens it."""
    return app_state().ports.vault.import_key(custody.import_location(import_id))


def _seal(secret: str, row_id: str) -> str:
    return app_state().ports.vault.seal(_bytes(secret), custody.key_location(row_id))


def _check(sealed: str, table: str, row_id: str) -> None:
    """Check that a wallet's key can be opened. Raises: Rejected, KeyServiceUnavailable."""
    app_state().ports.vault.check(sealed, SecretLocation(table, "sealed", row_id))


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
