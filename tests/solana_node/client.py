"""A client of the node with solders' typed requests and responses."""

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

import requests
from solders.commitment_config import CommitmentLevel
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.config import (
    RpcContextConfig,
    RpcSendTransactionConfig,
    RpcSignatureStatusConfig,
    RpcTransactionConfig,
)
from solders.rpc.requests import (
    GetBalance,
    GetLatestBlockhash,
    GetSignatureStatuses,
    GetTokenAccountBalance,
    GetTransaction,
    SendRawTransaction,
)
from solders.rpc.responses import (
    GetBalanceResp,
    GetLatestBlockhashResp,
    GetSignatureStatusesResp,
    GetTokenAccountBalanceResp,
    GetTransactionResp,
    SendTransactionResp,
)
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction
from solders.transaction_status import (
    EncodedConfirmedTransactionWithStatusMeta,
    TransactionStatus,
    UiTransactionEncoding,
)

from solana_node.addresses import TOKEN, associated_token_address
from solana_node.tokens import create_token_account

SOL = 10**9
USDC = 10**6
PROCESSED, CONFIRMED, FINALIZED = (CommitmentLevel.Processed, CommitmentLevel.Confirmed, CommitmentLevel.Finalized)


class Request(Protocol):
    """A typed request of solders."""

    def to_json(self) -> str:
        """Return the request as JSON."""


class Answer(Protocol):
    """A typed answer of solders."""

    @staticmethod
    def from_json(raw: str) -> object:
        """Parse the response or error."""


A = TypeVar("A", bound=Answer)


class RefusedError(Exception):
    """The node returned an error."""

    def __init__(self, answer: object) -> None:
        super().__init__(str(answer))
        self.answer = answer


class Client:
    """A client of one node."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def post(self, body: str | bytes) -> requests.Response:
        """Send a raw body."""
        headers = {"Content-Type": "application/json"}
        return self.session.post(self.url, data=body, headers=headers, timeout=10)

    def ask(self, request: Request, answer_type: type[A]) -> A:
        """Send a typed request and return the typed response."""
        response = self.post(request.to_json())
        response.raise_for_status()
        answer = answer_type.from_json(response.text)
        if not isinstance(answer, answer_type):
            raise RefusedError(answer)
        return answer

    def lamports(self, owner: Pubkey, commitment: CommitmentLevel = CONFIRMED) -> int:
        """Return a balance in lamports."""
        answer = self.ask(GetBalance(owner, RpcContextConfig(commitment)), GetBalanceResp)
        return answer.value

    def token_units(self, owner: Pubkey, mint: Pubkey, commitment: CommitmentLevel = CONFIRMED) -> int:
        """Return the balance of an owner's associated token account in base units."""
        account = associated_token_address(owner, mint)
        request = GetTokenAccountBalance(account, commitment)
        answer = self.ask(request, GetTokenAccountBalanceResp)
        return int(answer.value.amount)

    def blockhash(self, commitment: CommitmentLevel = CONFIRMED) -> Hash:
        """Return a recent blockhash."""
        request = GetLatestBlockhash(RpcContextConfig(commitment))
        answer = self.ask(request, GetLatestBlockhashResp)
        return answer.value.blockhash

    def sign(
        self, instructions: Sequence[Instruction], *signers: Keypair, blockhash: Hash | None = None, salt: int = 0
    ) -> VersionedTransaction:
        """Sign instructions; the first signer pays. Different salts make different transactions."""
        budget = set_compute_unit_limit(200_000 + salt)
        message = MessageV0.try_compile(signers[0].pubkey(), [budget, *instructions], [], blockhash or self.blockhash())
        return VersionedTransaction(message, list(signers))

    def send(self, transaction: VersionedTransaction, *, preflight: CommitmentLevel | None = CONFIRMED) -> Signature:
        """Send with a preflight at a commitment, or without one."""
        config = RpcSendTransactionConfig(skip_preflight=preflight is None, preflight_commitment=preflight)
        request = SendRawTransaction(bytes(transaction), config)
        answer = self.ask(request, SendTransactionResp)
        return answer.value

    def status(self, signature: Signature, *, search_history: bool = True) -> TransactionStatus | None:
        """Return the status of a transaction."""
        request = GetSignatureStatuses([signature], RpcSignatureStatusConfig(search_history))
        answer = self.ask(request, GetSignatureStatusesResp)
        return answer.value[0]

    def transaction(
        self,
        signature: Signature,
        commitment: CommitmentLevel | None = CONFIRMED,
        *,
        encoding: UiTransactionEncoding = UiTransactionEncoding.JsonParsed,
        max_version: int | None = 0,
    ) -> EncodedConfirmedTransactionWithStatusMeta | None:
        """Return a landed transaction."""
        config = RpcTransactionConfig(encoding, commitment, max_version)
        answer = self.ask(GetTransaction(signature, config), GetTransactionResp)
        return answer.value


def pay_sol(sender: Keypair, recipient: Pubkey, lamports: int) -> Instruction:
    """Build a transfer of SOL."""
    return transfer(TransferParams(from_pubkey=sender.pubkey(), to_pubkey=recipient, lamports=lamports))


def pay_token(sender: Keypair, recipient: Pubkey, mint: Pubkey, units: int) -> list[Instruction]:
    """Build a transfer of a six-decimal token that creates the recipient's account if it is missing."""
    data = bytes([12]) + units.to_bytes(8, "little") + bytes([6])
    accounts = [
        AccountMeta(associated_token_address(sender.pubkey(), mint), is_signer=False, is_writable=True),
        AccountMeta(mint, is_signer=False, is_writable=False),
        AccountMeta(associated_token_address(recipient, mint), is_signer=False, is_writable=True),
        AccountMeta(sender.pubkey(), is_signer=True, is_writable=False),
    ]
    return [
        create_token_account(sender.pubkey(), recipient, mint),
        Instruction(Pubkey.from_string(TOKEN), data, accounts),
    ]
