"""Methods that read accounts at a commitment level."""

from collections.abc import Callable
from typing import Final

from solders.account import Account

from solana_node import tokens
from solana_node.account_json import account_json
from solana_node.addresses import TOKEN_PROGRAMS
from solana_node.chain import Chain
from solana_node.errors import InvalidParamsError, JsonObject
from solana_node.parameters import Config, read_address, read_commitment, with_context

MAX_ACCOUNTS: Final = 100


def get_balance(chain: Chain, address: str, config: Config = None) -> JsonObject:
    """Return the lamports of an account."""
    account = chain.account(str(read_address(address)), read_commitment(config))
    return with_context(chain, config, account.lamports if account else 0)


def get_account_info(chain: Chain, address: str, config: Config = None) -> JsonObject:
    """Return an account; null if it does not exist."""
    account = chain.account(str(read_address(address)), read_commitment(config))
    return with_context(chain, config, account_json(chain, account, config) if account else None)


def get_multiple_accounts(chain: Chain, addresses: list[str], config: Config = None) -> JsonObject:
    """Return up to 100 accounts in order."""
    if len(addresses) > MAX_ACCOUNTS:
        raise InvalidParamsError(f"Too many inputs provided; max {MAX_ACCOUNTS}")
    commitment = read_commitment(config)
    shown = {**(config or {}), "encoding": (config or {}).get("encoding") or "base64"}
    accounts = [chain.account(str(read_address(address)), commitment) for address in addresses]
    return with_context(
        chain, config, [account_json(chain, account, shown) if account else None for account in accounts]
    )


def get_token_account_balance(chain: Chain, address: str, config: Config = None) -> JsonObject:
    """Return the amount in a token account."""
    token_account = tokens.read_token_account(_existing(chain, address, config))
    if token_account is None:
        raise InvalidParamsError("Invalid param: not a Token account")
    mint = tokens.read_mint(chain.account(token_account.mint))
    decimals = mint.decimals if mint else 0
    return with_context(chain, config, tokens.amount_json(token_account.amount, decimals=decimals))


def get_token_supply(chain: Chain, address: str, config: Config = None) -> JsonObject:
    """Return the supply of a token."""
    mint = tokens.read_mint(_existing(chain, address, config))
    if mint is None:
        raise InvalidParamsError("Invalid param: not a Token mint")
    return with_context(chain, config, tokens.amount_json(mint.supply, decimals=mint.decimals))


def get_token_accounts_by_owner(chain: Chain, owner: str, wanted: JsonObject, config: Config = None) -> JsonObject:
    """Return an owner's token accounts of one mint or one token program."""
    owner = str(read_address(owner))
    commitment = read_commitment(config)
    mint, program = wanted.get("mint"), wanted.get("programId")
    if mint:
        if tokens.read_mint(chain.account(str(read_address(mint)), commitment)) is None:
            raise InvalidParamsError("Invalid param: could not find mint")
    elif program not in TOKEN_PROGRAMS:
        raise InvalidParamsError("Invalid param: unrecognized Token program id")
    found = []
    for address in chain.accounts:
        account = chain.account(address, commitment)
        token_account = tokens.read_token_account(account)
        if account is None or token_account is None or token_account.owner != owner:
            continue
        if token_account.mint == mint if mint else str(account.owner) == program:
            found.append({"account": account_json(chain, account, config), "pubkey": address})
    return with_context(chain, config, found)


def _existing(chain: Chain, address: str, config: Config) -> Account:
    account = chain.account(str(read_address(address)), read_commitment(config))
    if account is None:
        raise InvalidParamsError("Invalid param: could not find account")
    return account


METHODS: Final[dict[str, Callable[..., object]]] = {
    "getBalance": get_balance,
    "getAccountInfo": get_account_info,
    "getMultipleAccounts": get_multiple_accounts,
    "getTokenAccountBalance": get_token_account_balance,
    "getTokenSupply": get_token_supply,
    "getTokenAccountsByOwner": get_token_accounts_by_owner,
}
