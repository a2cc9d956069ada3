"""CCTP on Solana: burn and mint by one transaction each, and the search for the mint of a message.

The account of a nonce proves that some message with it was received; only the received bytes show which.
"""

from collections.abc import Sequence

import structlog
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.commitment_config import CommitmentLevel
from solders.compute_budget import set_compute_unit_limit
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.bridges.cctp import instructions, messages
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaRpcCall
from app.adapters.solana.client.wire import Accounts, AccountState, TracedTransaction
from app.adapters.solana.send import tokens, transactions
from app.adapters.solana.send.drafts import assert_rent_exempt
from app.adapters.solana.send.simulation import SimulatedTransaction, simulate
from app.adapters.solana.track import account_history
from app.core.chains import SOL, USDC, ChainName
from app.core.money import TokenAmount
from app.ports.bridges import ArrivalNotFound, BridgeArrival, BridgeLegKind, BridgeRequest, BridgeStep
from app.ports.chain import BlockRef, Shortage, TransactionDraft, TransferIntent
from app.ports.errors import Rejected, Unreachable


def _find_at_endpoint(
    endpoint: RpcEndpoint, message: messages.CctpMessage, *, hint: str | None
) -> BridgeArrival | ArrivalNotFound:
    """Check our own transaction, then the account's history from its beginning. Raises: EndpointError."""
    found = None if hint is None else _first_mint(endpoint, [hint], message)
    if found is None:
        account = str(instructions.used_nonce(message))
        cursor = account_history.HistoryCursor(account, account_history.HistoryProgress(), since=0)
        read = account_history.continue_reading(
            endpoint, [cursor], read_limits=account_history.HistoryReadLimits(), commitment=CommitmentLevel.Confirmed
        )
        progress, entries = read[account]
        # While older entries are missing, the first one is unknown.
        if progress.before is None:
            found = _first_mint(endpoint, [entry.signature for entry in entries], message)
    return ArrivalNotFound.UNREADABLE if found is None else found


def _first_mint(
    endpoint: RpcEndpoint, signatures: list[str], message: messages.CctpMessage
) -> BridgeArrival | ArrivalNotFound | None:
    """Return what the first transaction that used the nonce received; None if none is shown to have."""
    level, kind = CommitmentLevel.Confirmed, TracedTransaction
    for signature, traced in account_history.transactions(endpoint, signatures, level, kind, max_seconds=10):
        # A replay fails, and lists the account as well.
        if traced is not None and not traced.failed:
            found = _received_mint(signature, traced, message)
            if found is not None:
                return found
    return None


def _received_mint(
    signature: str, traced: TracedTransaction, message: messages.CctpMessage
) -> BridgeArrival | ArrivalNotFound | None:
    for program, data in traced.calls:
        received = instructions.received_message(data) if program == str(instructions.TRANSMITTER) else None
        if received is None:
            continue
        try:
            received_message = messages.read(received)
        except messages.MessageMismatchError:
            continue
        if received_message.nonce != message.nonce:
            continue
        if received_message.burn != message.burn:
            return ArrivalNotFound.NOT_FOUND
        slot = traced.slot
        return BridgeArrival(
            received_message.burn.units - received_message.fee_units, signature, BlockRef(slot, signature)
        )
    return None


_log = structlog.get_logger(__name__)
_U64 = 2**64


class SolanaCctpChain:
    """The same as `EvmCctpChain`; a mint needs the recipient's token account, which is created first."""

    name = ChainName.SOLANA

    def __init__(self, chain: SolanaChain, lookup_table: str | None) -> None:
        """Store the chain, and the address of a mint's lookup table, if any. Raises: ValueError for another text."""
        self._chain = chain
        self._lookup_tables = [Pubkey.from_string(lookup_table)] if lookup_table else []
        self.sign, self.receiving_refusal, self.head = chain.sign, chain.receiving_refusal, chain.head
        self._mint, self.token = chain.mint, bytes(chain.mint)

    def mint_recipient(self, owner: str) -> bytes:
        return bytes(tokens.account_of(Pubkey.from_string(owner), self._mint))

    def draft_burn(
        self, request: BridgeRequest, burn: messages.CctpBurn, *, finality: int, is_forwarded: bool
    ) -> tuple[BridgeStep, ...]:
        owner, event = Pubkey.from_string(request.sender), Keypair()
        if request.amount.units >= _U64:
            raise Rejected("insufficient_funds")  # more than the chain can represent
        burning = instructions.burn(
            owner, self._mint, event.pubkey(), burn, finality=finality, is_forwarded=is_forwarded
        )
        simulated = self._simulate(owner, [burning], new_account_bytes=instructions.EVENT_BYTES)
        units = transactions.compute_unit_limit(simulated.simulation.compute_units)
        rent = simulated.rents[instructions.EVENT_BYTES]
        fee_units = (
            transactions.fee_lamports(units, simulated.price) + transactions.BASE_FEE_LAMPORTS + rent
        )  # two sign
        lamports, token_units = self._balances(owner, simulated.before)
        Shortage.check(USDC, "insufficient_funds", token_units, request.amount.units)
        Shortage.check(SOL, "insufficient_gas", lamports, fee_units + simulated.empty_rent)
        simulated.assert_succeeded()
        lamports_after, held_after = self._balances(owner, simulated.after)
        if held_after != token_units - request.amount.units or lamports_after < lamports - fee_units:
            raise Rejected("unsafe_instructions")
        intent = TransferIntent(request.sender, str(instructions.MESSENGER), request.amount)
        budget = units, simulated.price
        message = transactions.compiled(owner, [burning], simulated.latest.blockhash, budget=budget)
        event_signature = event.sign_message(to_bytes_versioned(message))
        transaction = VersionedTransaction.populate(message, [Signature.default(), event_signature])
        terms = transactions.transaction_terms(transaction, simulated.latest)
        draft = simulated.draft(intent, terms, fee_units, (lamports, token_units))
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
        needed = transactions.BASE_FEE_LAMPORTS + nonce_rent.result + empty_rent.result
        if makes_account:
            needed += transactions.BASE_FEE_LAMPORTS + token_rent.result
        Shortage.check(SOL, "insufficient_gas", lamports, needed)

    def draft_mint(self, owner: str, message: messages.CctpMessage, attestation: bytes, *, failures: int) -> BridgeStep:
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
        receiving = instructions.receive_message(
            message, attestation, self._mint, payer=key, token_account=tokens.account_of(key, self._mint),
            fee_account=tokens.account_of(fee_owner, self._mint),
        )  # fmt: skip
        draft = self._simulated_draft(no_amount, [receiving], tables=self._tables(), failures=failures)
        return BridgeStep(BridgeLegKind.DESTINATION, self.name, draft)

    def is_minted(self, message: messages.CctpMessage) -> bool:
        used = self._chain.rpc.ask(calls.accounts([instructions.used_nonce(message)], self._chain.level))
        (state,) = used.found
        return state is not None and state.owner == instructions.TRANSMITTER

    def find_mint(
        self, message: messages.CctpMessage, *, hint: str | None, since: int
    ) -> BridgeArrival | ArrivalNotFound:
        """Find it from the beginning of the history of the nonce's account, which is no older than `since`."""
        rpc = self._chain.rpc
        return messages.first_arrival(rpc.run_on_each(lambda endpoint: _find_at_endpoint(endpoint, message, hint=hint)))

    def _simulated_draft(
        self,
        intent: TransferIntent,
        body: Sequence[Instruction],
        *,
        makes_token_account: bool = False,
        tables: Sequence[AddressLookupTableAccount] = (),
        failures: int = 0,
    ) -> TransactionDraft:
        """Draft and simulate a transaction that costs its fee and rents only, more after failures. Raises: Rejected."""
        owner = Pubkey.from_string(intent.sender)
        marked = list(body)
        if makes_token_account:
            marked[0] = transactions.with_reference(body[0], transactions.new_reference())
        # By default a simulation has 200 000 units, which a mint may exceed.
        unlimited = [set_compute_unit_limit(transactions.MAX_COMPUTE_UNITS), *marked]
        if _bytes_of(transactions.compiled(owner, unlimited, tables=tables)) > transactions.MAX_BYTES:
            unlimited = marked
        simulated = self._simulate(owner, unlimited, new_account_bytes=instructions.USED_NONCE_BYTES, tables=tables)
        units = transactions.compute_unit_limit(simulated.simulation.compute_units * (failures + 1))
        price = transactions.retry_price(simulated.price) if failures else simulated.price
        latest = simulated.latest.blockhash
        message = transactions.compiled(owner, marked, latest, budget=(units, price), tables=tables)
        if _bytes_of(message) > transactions.MAX_BYTES:
            # Without a lookup table, a message with two attestations fills the transaction.
            message, units, price = transactions.compiled(owner, marked, latest, tables=tables), 0, 0
        if _bytes_of(message) > transactions.MAX_BYTES:
            raise Rejected("simulation_failed", details={"revert": "transaction too large"})
        rent = simulated.token_rent if makes_token_account else simulated.rents[instructions.USED_NONCE_BYTES]
        fee_units = transactions.fee_lamports(units, price) + rent
        lamports, token_units = self._balances(owner, simulated.before)
        if lamports < fee_units or 0 < lamports - fee_units < simulated.empty_rent:
            Shortage.check(SOL, "insufficient_gas", lamports, fee_units + simulated.empty_rent)
        simulated.assert_succeeded()
        assert_rent_exempt(simulated.empty_rent, remaining=lamports - fee_units)
        terms = transactions.transaction_terms(transactions.unsigned_transaction(message), simulated.latest)
        return simulated.draft(intent, terms, fee_units, (lamports, token_units))

    def _tables(self) -> Sequence[AddressLookupTableAccount]:
        """Read the lookup table; none if it does not exist, with which a mint has no priority fee."""
        try:
            return transactions.read_tables(self._chain.rpc, self._lookup_tables)
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
            self._chain.rpc, self._chain.level, transactions.compiled(owner, body, tables=tables),
            [owner, tokens.account_of(owner, self._mint)], new_account_bytes=new_account_bytes,
        )  # fmt: skip


def _bytes_of(message: MessageV0) -> int:
    return len(bytes(transactions.unsigned_transaction(message)))
