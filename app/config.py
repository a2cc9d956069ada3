"""The settings: typed, frozen, read once. The only reader of the environment.

Each name is in `.env.example` and `docs/configuration.md`; a test holds the three together.
"""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.core import addresses
from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Family

GOOD_SECRET = 32
"""Characters that a secret needs, so that nobody guesses it."""
_KEY_BYTES = 32
_JUPITER = "https://api.jup.ag"
_SANDBOX_JUPITER = "http://127.0.0.1:18549"
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_LIMITS = (
    "grant_budget_usd_per_day",
    "registration_rate_limit",
    "rate_limit_per_key",
    "device_miss_limit",
    "x402_miss_limit",
)
_REQUIRED_OUTSIDE_SANDBOX = ("secret_key", "code_peppers", "encryption_keys")


# Endpoints often carry a key.
_Urls = Annotated[tuple[str, ...], NoDecode, Field(repr=False)]


def _base_url(text: str) -> str:
    """Take `http(s)://host[:port][/path]`, where `{network}` and `{key}` may stand."""
    try:
        parts = urlsplit(text.format(network="network", key="key"))
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        usable = (
            usable and parts.username is None and not parts.fragment and text.isascii() and " " not in text
        )
    except (ValueError, LookupError):
        usable = False
    if not usable:
        raise ValueError("it must look like https://host/path, without a user or a fragment")
    return text.rstrip("/")


# The operator's own address may hold a key, too.
_BaseUrl = Annotated[str, AfterValidator(_base_url), Field(repr=False)]


class Network(StrEnum):
    """Which set of chains is served: private local ones, public test networks, or the real ones."""

    SANDBOX = "sandbox"
    TESTNET = "testnet"
    MAINNET = "mainnet"


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _keys(text: str, name: str) -> tuple[tuple[str, bytes], ...]:
    keys = []
    for part in _split(text):
        key_id, colon, encoded = part.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if not colon or not _KEY_ID.fullmatch(key_id) or len(key) != _KEY_BYTES:
            msg = f"{name} must be a comma-separated list of id:base64 of {_KEY_BYTES} bytes"
            raise ValueError(msg)
        keys.append((key_id, key))
    if len({key_id for key_id, _ in keys}) != len(keys):
        msg = f"{name} names a key id twice"
        raise ValueError(msg)
    return tuple(keys)


class _UpstreamSettings(BaseSettings):
    """Whom the gateway forwards to, and how long it waits."""

    openai_api_key: SecretStr = SecretStr("")
    openai_base_url: _BaseUrl = "https://api.openai.com/v1"
    anthropic_api_key: SecretStr = SecretStr("")
    anthropic_base_url: _BaseUrl = "https://api.anthropic.com"
    gemini_api_key: SecretStr = SecretStr("")
    gemini_base_url: _BaseUrl = "https://generativelanguage.googleapis.com"
    openrouter_api_key: SecretStr = SecretStr("")
    openrouter_base_url: _BaseUrl = "https://openrouter.ai/api/v1"
    groq_api_key: SecretStr = SecretStr("")
    groq_base_url: _BaseUrl = "https://api.groq.com/openai/v1"
    alchemy_api_key: SecretStr = SecretStr("")
    alchemy_base_url: _BaseUrl = "https://{network}.g.alchemy.com/v2/{key}"
    coingecko_api_key: SecretStr = SecretStr("")
    coingecko_base_url: _BaseUrl = "https://api.coingecko.com/api/v3"
    brave_api_key: SecretStr = SecretStr("")
    brave_base_url: _BaseUrl = "https://api.search.brave.com/res/v1"
    exa_api_key: SecretStr = SecretStr("")
    exa_base_url: _BaseUrl = "https://api.exa.ai"
    tavily_api_key: SecretStr = SecretStr("")
    tavily_base_url: _BaseUrl = "https://api.tavily.com"
    gateway_providers_file: str = ""
    gateway_max_call_usd: Decimal = Field(Decimal("5.00"), gt=0, le=1_000_000)
    upstream_connect_timeout_seconds: Decimal = Field(Decimal(5), gt=0, le=60)
    upstream_read_timeout_seconds: Decimal = Field(Decimal(600), gt=0, le=3600)
    stream_max_seconds: int = Field(3600, ge=1, le=86_400)
    x402_price_usd: Decimal = Field(Decimal("0.01"), gt=0, le=1000)
    x402_recipient_evm: str = ""
    x402_recipient_solana: str = ""
    x402_settlement_key_evm: SecretStr = SecretStr("")
    x402_settlement_key_solana: SecretStr = SecretStr("")
    x402_max_age_seconds: int = Field(3600, ge=60, le=86_400)
    x402_miss_limit: str | None = None
    allow_private_upstreams: bool = False


class Settings(_UpstreamSettings):
    """Everything an operator can set. Field names are the environment's names in lower case."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", hide_input_in_errors=True, validate_default=True
    )

    network: Network = Network.SANDBOX
    port: int = Field(8000, ge=1, le=65535)
    base_url: str = ""
    database_url: SecretStr = SecretStr("sqlite:///var/purser.sqlite")
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:16379/0")

    secret_key: SecretStr = SecretStr("")
    secret_key_fallbacks: SecretStr = SecretStr("")
    code_peppers: SecretStr = SecretStr("")
    encryption_keys: SecretStr = SecretStr("")
    bootstrap_master_key: SecretStr = SecretStr("")

    web_concurrency: int = Field(2, ge=1)
    web_threads: int = Field(1100, ge=1)
    database_pool_size: int = Field(5, ge=1)
    database_pool_overflow: int = Field(10, ge=0)

    initial_credits_usd: Decimal = Field(Decimal("10.00"), ge=0, le=1_000_000)
    grant_budget_usd_per_day: Decimal | None = Field(None, ge=0)
    registration_rate_limit: str | None = None
    rate_limit_per_key: str | None = None
    device_miss_limit: str | None = None
    trusted_proxy_hops: int = Field(0, ge=0, le=10)

    ethereum_rpc_url: _Urls = ()
    base_rpc_url: _Urls = ()
    solana_rpc_url: _Urls = ()
    faucet_url: str = ""
    ethereum_confirmations: int = Field(1, ge=1)
    base_confirmations: int = Field(1, ge=1)
    solana_commitment: Literal["confirmed", "finalized"] = "confirmed"
    ethereum_deposit_confirmations: int = Field(2, ge=1)
    base_deposit_confirmations: int = Field(5, ge=1)
    ethereum_stuck_blocks: int = Field(6, ge=1)
    base_stuck_blocks: int = Field(30, ge=1)
    confirmation_wait_seconds: Decimal = Field(Decimal(5), ge=0, le=25)
    poll_interval_seconds: Decimal = Field(Decimal(2), gt=0)
    max_slippage_bps: int = Field(500, ge=0, le=5000)
    max_price_deviation_bps: int = Field(200, ge=0, le=5000)
    max_network_fee_usd: Decimal = Field(Decimal(25), gt=0)
    max_bridge_fee_bps: int = Field(100, ge=0, le=5000)
    funding_request_ttl_seconds: int = Field(604_800, ge=1)
    retired_key_ttl_seconds: int = Field(7_776_000, ge=0)
    # Limits and their audit look back two months at most.
    retention_days: int = Field(400, ge=62, le=36_500)
    price_overrides: str = ""
    jupiter_base_url: str = ""
    perpdex_base_url: str = ""
    cctp_attestation_url: str = ""
    relay_base_url: str = ""
    lifi_base_url: str = ""

    browser_executable: str = ""
    shopping_price_usd: Decimal = Field(Decimal("0.25"), ge=0, le=1000)

    metrics_token: SecretStr = SecretStr("")
    sentry_dsn: SecretStr = SecretStr("")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"

    @field_validator("ethereum_rpc_url", "base_rpc_url", "solana_rpc_url", mode="before")
    @classmethod
    def _urls(cls, value: Any) -> tuple[str, ...]:
        return _split(value) if isinstance(value, str) else tuple(value)

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("redis_url")
    @classmethod
    def _usable_redis(cls, value: SecretStr) -> SecretStr:
        # Refused here, where nothing is shown: libraries quote a URL that they cannot use, password and all.
        try:
            parts = urlsplit(value.get_secret_value())
            usable = parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            msg = "REDIS_URL must look like redis://:password@host:6379/0, the password percent-encoded"
            raise ValueError(msg)
        return value

    @field_validator("database_url", mode="before")
    @classmethod
    def _sqlalchemy_url(cls, value: Any) -> Any:
        # Hosts hand out postgres://, which SQLAlchemy does not know; psycopg 3 is the driver installed here.
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        return SecretStr(re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", text))

    @model_validator(mode="before")
    @classmethod
    def _defaults_by_network(cls, values: dict[str, Any]) -> dict[str, Any]:
        # An empty value is as good as none, save for the limits, where it says "off".
        values = {
            name: None if value == "" else value
            for name, value in values.items()
            if value != "" or name in _LIMITS
        }
        if values.get("network", Network.SANDBOX) != Network.SANDBOX:
            values.setdefault("grant_budget_usd_per_day", "1000")
            values.setdefault("registration_rate_limit", "5 per minute;60 per hour")
            values.setdefault("rate_limit_per_key", "600 per minute")
            values.setdefault("device_miss_limit", "5 per hour")
            values.setdefault("x402_miss_limit", "30 per minute")
        else:
            values.setdefault("allow_private_upstreams", "1")
        return values

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        missing = [name for name in _REQUIRED_OUTSIDE_SANDBOX if not getattr(self, name).get_secret_value()]
        if missing:
            names = ", ".join(name.upper() for name in missing)
            msg = f"set {names} (`./run` makes them for the sandbox; docs/configuration.md says how)"
            raise ValueError(msg)
        # Whoever guesses one can write what only we should: a short one may be a piece of one with a comma in it.
        if any(len(each) < GOOD_SECRET for each in self.secret_key_list()[1:]):
            msg = (
                f"SECRET_KEY_FALLBACKS are separated by commas and have {GOOD_SECRET} characters or more each"
            )
            raise ValueError(msg)
        _keys(self.code_peppers.get_secret_value(), "CODE_PEPPERS")
        _keys(self.encryption_keys.get_secret_value(), "ENCRYPTION_KEYS")
        self.prices_overridden()
        self.payment_recipient(Family.EVM)
        self.payment_recipient(Family.SOLANA)
        self.settlement_keys()
        return self

    @classmethod
    def load(cls) -> Settings:
        """Read the environment. Raises: SystemExit with one line for each setting that is wrong, and no value."""
        try:
            return cls()
        except ValidationError as error:
            lines = [
                ": ".join(
                    filter(None, [str(problem["loc"][0]).upper() if problem["loc"] else "", problem["msg"]])
                )
                for problem in error.errors(include_input=False, include_url=False, include_context=False)
            ]
            raise SystemExit("\n".join(["The settings are not right:", *lines])) from None

    @property
    def is_sandbox(self) -> bool:
        """Tell whether the private local chains are served."""
        return self.network is Network.SANDBOX

    @property
    def public_url(self) -> str:
        """Return the address in links, without a trailing slash."""
        return (self.base_url or f"http://127.0.0.1:{self.port}").rstrip("/")

    @property
    def jupiter_url(self) -> str:
        """Return Jupiter's base address; in the sandbox that of its stand-in."""
        return self.jupiter_base_url or (_SANDBOX_JUPITER if self.is_sandbox else _JUPITER)

    def secret_key_list(self) -> tuple[str, ...]:
        """Return the secret for new tokens and digests, then those that are still believed."""
        return (
            self.secret_key.get_secret_value(),
            *_split(self.secret_key_fallbacks.get_secret_value()),
        )

    def encryption_key_list(self) -> tuple[tuple[str, bytes], ...]:
        """Return `(id, 32 bytes)` pairs, the one for new data first."""
        return _keys(self.encryption_keys.get_secret_value(), "ENCRYPTION_KEYS")

    def code_pepper_list(self) -> tuple[tuple[str, bytes], ...]:
        """Return `(id, 32 bytes)` pairs, the one for new claim codes first."""
        return _keys(self.code_peppers.get_secret_value(), "CODE_PEPPERS")

    def rpc_urls(self, chain: ChainName) -> tuple[str, ...]:
        """Return the configured endpoints of a chain, possibly none."""
        urls: tuple[str, ...] = getattr(self, f"{chain.value}_rpc_url")
        return urls

    def payment_recipient(self, family: Family) -> str | None:
        """Return where the operator wants payments to go, if anywhere in particular. Raises: ValueError."""
        name = f"x402_recipient_{family.value}"
        text: str = getattr(self, name)
        try:
            return addresses.parse(text, family) if text else None
        except addresses.AddressError as error:
            msg = f"{name.upper()} {error}"
            raise ValueError(msg) from None

    def settlement_keys(self) -> tuple[bytes | None, bytes | None]:
        """Return the operator's own 32-byte keys for submitting payments, EVM and Solana. Raises: ValueError."""
        evm_text = self.x402_settlement_key_evm.get_secret_value()
        solana_text = self.x402_settlement_key_solana.get_secret_value()
        try:
            evm = bytes.fromhex(evm_text.removeprefix("0x"))
            # Solana's tools write the seed and the public key after it.
            solana = addresses.base58_bytes(solana_text)[:_KEY_BYTES]
        except ValueError:
            evm = solana = b"?"
        if len(evm) not in (0, _KEY_BYTES) or len(solana) not in (0, _KEY_BYTES):
            msg = "X402_SETTLEMENT_KEY_EVM must be 32 bytes in hex, X402_SETTLEMENT_KEY_SOLANA a keypair in base58"
            raise ValueError(msg)
        return evm or None, solana or None

    def prices_overridden(self) -> dict[str, Decimal]:
        """Return PRICE_OVERRIDES as dollars by token symbol. Raises: ValueError."""
        prices = {}
        for part in _split(self.price_overrides):
            symbol, _, usd = part.partition(":")
            try:
                prices[symbol] = Decimal(usd)
            except InvalidOperation:
                prices[symbol] = Decimal(0)
            if symbol not in TOKENS_BY_SYMBOL or not prices[symbol].is_finite() or prices[symbol] <= 0:
                msg = "PRICE_OVERRIDES must look like ETH:3000,SOL:150"
                raise ValueError(msg)
        return prices
