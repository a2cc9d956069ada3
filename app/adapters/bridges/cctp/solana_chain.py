"""CCTP on Solana: burn and mint by one transaction each, after creating the token account if it is missing."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.bridges.cctp import instructions, solana_mints
from app.adapters.bridges.cctp.chain_protocol import BurnParameters, MintNotFound
from app.adapters.bridges.cctp.instructions import MintAccounts
from app.adapters.bridges.cctp.messages import CctpMessage
from app.adapters.funds import require
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client import calls
from app.adapters.solana.client.rpc import SolanaRpcCall
from app.adapters.solana.client.wire import Accounts, AccountState
from app.adapters.solana.send import fees, lookup_tables, tokens, transactions
from app.adapters.solana.send.drafts import assert_rent_exempt
from app.adapters.solana.send.simulation import SimulatedTransaction, simulate
from app.core.chains import SOL, USDC, ChainName
from app.core.money import TokenAmount
from app.ports.bridges import BridgeArrival, BridgeLegKind, BridgeRequest, BridgeStep
from app.ports.chain import TransactionDraft, TransferIntent
from app.ports.errors import Rejected, Unreachable

_log = structlog.get_logger(__name__)
_NO_BLOCKHASH = Hash.default()
_U64 = 2**64


class SolanaCctpChain:
    """The same as `EvmCctpChain`; a mint needs the recipient's token account, which is created first."""

    name = ChainName.SOLANA

    def __init__(self, chain: SolanaChain, lookup_table: str | None) -> None:
        """Store the chain, used for all reads, and the lookup table of a mint's accounts, if there is one.

        Raises: ValueError for anything but an address.
        """
        self._chain = chain
        self._lookup_tables = [Pubkey.from_string(lookup_table)] if lookup_table else []
        self.sign, self.receiving_refusal = chain.sign, chain.receiving_refusal
        self._mint = Pubkey.from_string(chain.deployment.usdc_mint)

    def token(self) -> bytes:
        return bytes(self._mint)

    def mint_recipient(self, owner: str) -> bytes:
        """Return the owner's token account, which receives a mint."""
        return bytes(tokens.account_of(Pubkey.from_string(owner), self._mint))

    def expiry_position(self) -> int:
        """Return the newest slot, which messages' expiry refers to. Raises: Unreachable."""
        return self._chain.head().number

    def draft_burn(self, request: BridgeRequest, order: BurnParameters) -> tuple[BridgeStep, ...]:
        owner, event = Pubkey.from_string(request.sender), Keypair()
        if request.amount.units >= _U64:
            raise Rejected("insufficient_funds")  # more than the chain can represent
        burning = instructions.burn(owner, self._mint, event.pubkey(), units=request.amount.units, order=order)
        simulated = self._simulate(owner, [burning], new_account_bytes=instructions.EVENT_BYTES)
        units = fees.compute_unit_limit(simulated.simulation.compute_units)
        rent = simulated.rents[instructions.EVENT_BYTES]
        fee_units = fees.fee_lamports(units, simulated.price) + fees.BASE_FEE_LAMPORTS + rent  # two sign
        lamports, token_units = self._balances(owner, simulated.before)
        require(USDC, "insufficient_funds", token_units, request.amount.units)
        require(SOL, "insufficient_gas", lamports, fee_units + simulated.empty_rent)
        simulated.assert_succeeded()
        lamports_after, held_after = self._balances(owner, simulated.after)
        if held_after != token_units - request.amount.units or lamports_after < lamports - fee_units:
            raise Rejected("unsafe_instructions")
        budget = [set_compute_unit_limit(units), set_compute_unit_price(simulated.price)]
        intent = TransferIntent(request.sender, str(instructions.MESSENGER), request.amount)
        message = _compiled(owner, [*budget, burning], Hash.from_string(simulated.latest.blockhash))
        event_signature = event.sign_message(to_bytes_versioned(message))
        transaction = VersionedTransaction.populate(message, [Signature.default(), event_signature])
        draft = simulated.draft(intent, transaction, fee_units, (lamports, token_units))
        return (BridgeStep(BridgeLegKind.SOURCE, self.name, draft),)

    def assert_can_mint(self, owner: str) -> None:
        key = Pubkey.from_string(owner)
        found = self._accounts_call(key)
        nonce_rent, empty_rent = calls.rent(instructions.USED_NONCE_BYTES), calls.rent(0)
        token_rent = calls.rent(tokens.TOKEN_ACCOUNT_BYTES)
        self._chain.rpc.run(found, nonce_rent, empty_rent, token_rent)
        wallet, token_account = found.result.found
        lamports = wallet.lamports if wallet else 0
        makes_account = tokens.read_account(token_account) is None
        needed = fees.BASE_FEE_LAMPORTS + nonce_rent.result + empty_rent.result
        if makes_account:
            needed += fees.BASE_FEE_LAMPORTS + token_rent.result
        require(SOL, "insufficient_gas", lamports, needed)

    def draft_mint(self, owner: str, message: CctpMessage, attestation: bytes, *, failures: int) -> BridgeStep:
        key = Pubkey.from_string(owner)
        found = self._accounts_call(key)
        messenger = calls.accounts([instructions.MESSENGER_ACCOUNT], self._chain.level)
        self._chain.rpc.run(found, messenger)
        no_amount = TransferIntent(owner, str(instructions.TRANSMITTER), TokenAmount(0, USDC))
        if tokens.read_account(found.result.found[1]) is None:
            making = tokens.create_account(key, key, self._mint)
            return BridgeStep(
                BridgeLegKind.ACCOUNT, self.name, self._simulated_draft(no_amount, [making], makes_token_account=True)
            )
        (state,) = messenger.result.found
        try:
            fee_owner = instructions.fee_recipient(state.data if state else b"")
        except ValueError:
            raise Unreachable("chain_unreachable") from None
        receipt = MintAccounts(key, tokens.account_of(key, self._mint), tokens.account_of(fee_owner, self._mint))
        receiving = instructions.receive_message(receipt, self._mint, message, attestation)
        draft = self._simulated_draft(no_amount, [receiving], tables=self._tables(), failures=failures)
        return BridgeStep(BridgeLegKind.DESTINATION, self.name, draft)

    def is_minted(self, message: CctpMessage) -> bool:
        used = self._chain.rpc.ask(calls.accounts([instructions.used_nonce(message)], self._chain.level))
        (state,) = used.found
        return state is not None and state.owner == instructions.TRANSMITTER

    def find_mint(
        self,
        message: CctpMessage,
        *,
        hint: str | None,
        since: int,  # noqa: ARG002 - the message account holds the slot
    ) -> BridgeArrival | MintNotFound:
        return solana_mints.find_mint(self._chain.rpc, message, hint=hint)

    def _simulated_draft(
        self,
        intent: TransferIntent,
        body: Sequence[Instruction],
        *,
        makes_token_account: bool = False,
        tables: Sequence[AddressLookupTableAccount] = (),
        failures: int = 0,
    ) -> TransactionDraft:
        """Draft and simulate a transaction that costs only its fee and rents, with more after failures.

        Raises: Rejected.
        """
        owner = Pubkey.from_string(intent.sender)
        marked = list(body)
        if makes_token_account:
            marked[0] = transactions.with_reference(body[0], transactions.new_reference())
        # By default a simulation has 200 000 units, which a mint may exceed.
        unlimited = [set_compute_unit_limit(fees.MAX_COMPUTE_UNITS), *marked]
        if _bytes_of(_compiled(owner, unlimited, _NO_BLOCKHASH, tables)) > transactions.MAX_BYTES:
            unlimited = marked
        simulated = self._simulate(owner, unlimited, new_account_bytes=instructions.USED_NONCE_BYTES, tables=tables)
        units = fees.compute_unit_limit(simulated.simulation.compute_units * (failures + 1))
        price = fees.retry_price(simulated.price) if failures else simulated.price
        budget = [set_compute_unit_limit(units), set_compute_unit_price(price)]
        latest = Hash.from_string(simulated.latest.blockhash)
        message = _compiled(owner, [*budget, *marked], latest, tables)
        if _bytes_of(message) > transactions.MAX_BYTES:
            # Without a lookup table, a message with two attestations fills the transaction.
            message, units, price = _compiled(owner, marked, latest, tables), 0, 0
        if _bytes_of(message) > transactions.MAX_BYTES:
            raise Rejected("simulation_failed", details={"revert": "transaction too large"})
        rent = simulated.token_rent if makes_token_account else simulated.rents[instructions.USED_NONCE_BYTES]
        fee_units = fees.fee_lamports(units, price) + rent
        lamports, token_units = self._balances(owner, simulated.before)
        if lamports < fee_units or 0 < lamports - fee_units < simulated.empty_rent:
            require(SOL, "insufficient_gas", lamports, fee_units + simulated.empty_rent)
        simulated.assert_succeeded()
        assert_rent_exempt(simulated.empty_rent, remaining=lamports - fee_units)
        transaction = transactions.unsigned_transaction(message)
        return simulated.draft(intent, transaction, fee_units, (lamports, token_units))

    def _tables(self) -> Sequence[AddressLookupTableAccount]:
        """Read the lookup table; none if it does not exist, with which a mint has no priority fee."""
        try:
            return lookup_tables.read_tables(self._chain.rpc, self._lookup_tables)
        except Rejected:
            _log.warning("lookup_table_missing", address=str(self._lookup_tables[0]))
            return ()

    def _accounts_call(self, owner: Pubkey) -> SolanaRpcCall[Accounts]:
        return calls.accounts([owner, tokens.account_of(owner, self._mint)], self._chain.level)

    def _balances(self, owner: Pubkey, states: Sequence[AccountState | None]) -> tuple[int, int]:
        wallet, usdc = states
        return (wallet.lamports if wallet else 0, tokens.units_of(usdc, owner=owner, mint=self._mint))

    def _simulate(
        self,
        owner: Pubkey,
        body: Sequence[Instruction],
        *,
        new_account_bytes: int,
        tables: Sequence[AddressLookupTableAccount] = (),
    ) -> SimulatedTransaction:
        return simulate(
            self._chain.rpc,
            self._chain.level,
            _compiled(owner, body, _NO_BLOCKHASH, tables),
            [owner, tokens.account_of(owner, self._mint)],
            new_account_bytes=new_account_bytes,
        )


def _compiled(
    owner: Pubkey, body: Sequence[Instruction], latest: Hash, tables: Sequence[AddressLookupTableAccount] = ()
) -> MessageV0:
    return MessageV0.try_compile(owner, list(body), list(tables), latest)


def _bytes_of(message: MessageV0) -> int:
    return len(bytes(transactions.unsigned_transaction(message)))
