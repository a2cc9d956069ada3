"""Faucet: SOL and minted USDC by real transactions, which are in the history like others.

Faults do not affect them: a test that breaks the node still has to fund its wallets.
"""

import os

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from solana_node import tokens
from solana_node.addresses import MEMO, associated_token_address
from solana_node.chain import Chain
from solana_node.errors import InvalidParamsError
from solana_node.genesis import FAUCET


def airdrop(chain: Chain, address: Pubkey, lamports: int) -> str:
    """Pay SOL and return the signature.

    Raises:
        InvalidParamsError: the transfer failed, for instance below the rent of a new account.
    """
    sender = FAUCET.pubkey()
    return _land(chain, [transfer(TransferParams(from_pubkey=sender, to_pubkey=address, lamports=lamports))])


def mint(chain: Chain, owner: Pubkey, units: int, *, mint: Pubkey | None = None) -> str:
    """Mint base units of USDC, or of another mint of the faucet, to an owner and return the signature.

    Raises:
        InvalidParamsError: the mint is not the faucet's, or the chain refused.
    """
    mint = mint or chain.usdc
    account = chain.account(str(mint))
    state = tokens.read_mint(account)
    authority = FAUCET.pubkey()
    if account is None or state is None or state.mint_authority != str(authority):
        raise InvalidParamsError("not a mint of this cluster")
    program = str(account.owner)
    token_account = associated_token_address(owner, mint, program=program)
    return _land(
        chain,
        [
            tokens.create_token_account(authority, owner, mint, program=program),
            tokens.mint_to_checked(
                mint, token_account, authority=authority, amount=units, decimals=state.decimals, program=program
            ),
        ],
    )


def _land(chain: Chain, instructions: list[Instruction]) -> str:
    # Two equal payments in one slot would otherwise be one transaction.
    salt = Instruction(Pubkey.from_string(MEMO), os.urandom(4).hex().encode(), [])
    blockhash = Hash.from_string(chain.blockhashes.of_slot(chain.slot))
    message = MessageV0.try_compile(FAUCET.pubkey(), [*instructions, salt], [], blockhash)
    transaction = VersionedTransaction(message, [FAUCET])
    chain.execute(transaction)
    signature = str(transaction.signatures[0])
    record = chain.history.get(signature)
    if record is None or record.error is not None:
        reason = record.error if record else "it did not land"
        raise InvalidParamsError(f"the faucet's transaction failed: {reason}")
    return signature
