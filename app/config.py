"""The settings: typed, frozen, read once. Nothing else reads the environment.

`.env.example` and `docs/configuration.md` list the same names; a test compares the three.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode, urlsplit

from pydantic import AwareDatetime, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.core import host, setting_types
from app.core.chains import TOKENS_BY_SYMBOL, AddressError, ChainName, Family, base58_bytes, parse_address
from app.core.ip_ranges import is_loopback
from app.core.setting_types import KEY_BYTES, BaseUrl, Origins, PageUrl, RateLimit, SupportUrl, Urls, keys, split

MIN_SECRET_LENGTH = 32
"""The minimum number of characters of a secret, so that it cannot be guessed."""
PUBLIC_SANDBOX_MESSAGE = (
    "NETWORK is sandbox, and {what}. The sandbox has no real money and no limits: set NETWORK to testnet or mainnet,"
    " or SANDBOX_PUBLIC=1 to make a sandbox reachable from other machines"
)
_URL_SEPARATORS = re.compile(r"[/?&=@:]")
_MIN_HIDDEN_CHARACTERS = 8
"""Shorter texts are no keys, and occur by chance."""
REQUIRED = ("secret_key", "code_peppers", "encryption_keys")
"""The settings without a default; `./run` generates them for the sandbox."""


class Network(StrEnum):
    """The set of chains served: private local ones, public test networks, or mainnets."""

    SANDBOX = "sandbox"
    TESTNET = "testnet"
    MAINNET = "mainnet"


_CONFIG = SettingsConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, validate_default=True)


class UpstreamAccess(BaseSettings):
    """The operator's key and the address of each service that gives keys. `providers.toml` names those of its rows."""

    model_config = SettingsConfigDict(**_CONFIG, env_ignore_empty=True)

    openai_api_key: SecretStr = SecretStr("")
    openai_base_url: BaseUrl = "https://api.openai.com/v1"
    anthropic_api_key: SecretStr = SecretStr("")
    anthropic_base_url: BaseUrl = "https://api.anthropic.com"
    gemini_api_key: SecretStr = SecretStr("")
    gemini_base_url: BaseUrl = "https://generativelanguage.googleapis.com"
    openrouter_api_key: SecretStr = SecretStr("")
    openrouter_base_url: BaseUrl = "https://openrouter.ai/api/v1"
    groq_api_key: SecretStr = SecretStr("")
    groq_base_url: BaseUrl = "https://api.groq.com/openai/v1"
    alchemy_api_key: SecretStr = SecretStr("")
    alchemy_base_url: BaseUrl = "https://{network}.g.alchemy.com/v2/{key}"
    coingecko_api_key: SecretStr = SecretStr("")
    coingecko_base_url: BaseUrl = "https://api.coingecko.com/api/v3"
    brave_api_key: SecretStr = SecretStr("")
    brave_base_url: BaseUrl = "https://api.search.brave.com/res/v1"
    exa_api_key: SecretStr = SecretStr("")
    exa_base_url: BaseUrl = "https://api.exa.ai"
    tavily_api_key: SecretStr = SecretStr("")
    tavily_base_url: BaseUrl = "https://api.tavily.com"
    jupiter_api_key: SecretStr = SecretStr("")
    jupiter_base_url: str = ""
    relay_api_key: SecretStr = SecretStr("")
    relay_base_url: str = ""
    lifi_api_key: SecretStr = SecretStr("")
    lifi_base_url: str = ""


_SANDBOX_DEFAULTS = {"allow_private_upstreams": "1", "console_hosts": "127.0.0.1,localhost"}
# Outside the sandbox, which has none.
_LIMITS = {
    "grant_budget_usd_per_day": "1000", "registration_rate_limit": "5 per minute;60 per hour",
    "rate_limit_per_key": "600 per minute", "quote_rate_limit": "10 per minute",
    "keyless_rate_limit": "300 per minute", "device_miss_limit": "5 per hour", "x402_miss_limit": "30 per minute",
}  # fmt: skip


class Settings(BaseSettings):
    """All settings. Field names, also those of `upstreams`, are the environment variables' names in lower case."""

    model_config = _CONFIG

    network: Network = Network.SANDBOX
    sandbox_public: bool = False
    port: int = Field(8000, ge=1, le=65535)
    base_url: str = ""
    database_url: SecretStr = SecretStr("sqlite:///var/purser.sqlite")
    database_replica_url: SecretStr = SecretStr("")
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:16379/0")
    redis_ca_file: str = ""

    secret_key: SecretStr = SecretStr("")
    secret_key_fallbacks: SecretStr = SecretStr("")
    code_peppers: SecretStr = SecretStr("")
    encryption_keys: SecretStr = SecretStr("")
    wallet_encryption_keys: str = ""
    vault_token: SecretStr = SecretStr("")
    pkcs11_pin: SecretStr = SecretStr("")
    signer_socket: str = ""
    signer_database_url: SecretStr = SecretStr("")
    signer_client_uids: str = ""
    receipt_signing_keys: SecretStr = SecretStr("")
    web_bot_auth_keys: SecretStr = SecretStr("")
    bootstrap_master_key: SecretStr = SecretStr("")
    audit_witness_file: str = "var/audit-heads.log"

    host_memory: Literal["512MB", "1GB", "4GB"] | None = None
    web_concurrency: int = Field(0, ge=1)
    web_threads: int = Field(0, ge=1)
    database_pool_size: int = Field(0, ge=1)
    database_prepared_statements: bool = True

    initial_credits_usd: Decimal = Field(Decimal("10.00"), ge=0, le=1_000_000)
    grant_budget_usd_per_day: Decimal | None = Field(None, ge=0)
    registration_rate_limit: RateLimit | None = None
    rate_limit_per_key: RateLimit | None = None
    quote_rate_limit: RateLimit | None = None
    keyless_rate_limit: RateLimit | None = None
    device_miss_limit: RateLimit | None = None
    trusted_proxy_hops: int = Field(0, ge=0, le=10)
    cors_allowed_origins: Origins = ()
    console_hosts: str = ""

    ethereum_rpc_url: Urls = ()
    ethereum_private_rpc_url: Urls = ()
    base_rpc_url: Urls = ()
    solana_rpc_url: Urls = ()
    solana_priority_fee_estimate: bool = False
    faucet_url: str = ""
    ethereum_confirmations: int = Field(1, ge=1)
    base_confirmations: int = Field(1, ge=1)
    solana_commitment: Literal["confirmed", "finalized"] = "confirmed"
    ethereum_deposit_confirmations: int = Field(2, ge=1)
    base_deposit_confirmations: int = Field(5, ge=1)
    ethereum_stuck_blocks: int = Field(6, ge=1)
    base_stuck_blocks: int = Field(30, ge=1)
    confirmation_wait_seconds: Decimal | None = Field(None, ge=0, le=25)
    poll_interval_seconds: Decimal = Field(Decimal(2), gt=0)
    max_slippage_bps: int = Field(500, ge=0, le=5000)
    max_price_deviation_bps: int = Field(200, ge=0, le=5000)
    max_network_fee_usd: Decimal = Field(Decimal(25), gt=0)
    sponsored_per_day: int = Field(100, ge=0)
    sponsored_free_per_day: int = Field(0, ge=0)
    sponsored_free_usd_per_day: Decimal = Field(Decimal(1), ge=0)
    max_bridge_fee_bps: int = Field(100, ge=0, le=5000)
    topup_unfinal_usd: Decimal = Field(Decimal(1000), ge=0)
    topup_unfinal_usd_per_agent: Decimal = Field(Decimal(100), ge=0)
    funding_request_ttl_seconds: int = Field(604_800, ge=1)
    retired_key_ttl_seconds: int = Field(7_776_000, ge=0)
    owner_recovery_wait_seconds: int = Field(259_200, ge=3600)
    wallet_export_wait_seconds: int = Field(259_200, ge=60)
    # Limits and their audit read at most two months.
    retention_days: int = Field(400, ge=62, le=36_500)
    price_overrides: str = ""
    perpdex_base_url: str = ""
    cctp_attestation_url: str = ""
    cctp_lookup_table: str = ""

    upstreams: Annotated[UpstreamAccess, NoDecode] = Field(default_factory=UpstreamAccess)
    gateway_providers_file: str = ""
    gateway_prices_url: str = Field("", repr=False, pattern=r"^($|/|https://|http://(127\.0\.0\.1|localhost)[:/])")
    gateway_max_call_usd: Decimal = Field(Decimal("5.00"), gt=0, le=1_000_000)
    upstream_connect_timeout_seconds: Decimal = Field(Decimal(5), gt=0, le=60)
    upstream_read_timeout_seconds: Decimal = Field(Decimal(600), gt=0, le=3600)
    stream_max_seconds: int = Field(3600, ge=1, le=86_400)
    stream_keep_alive_seconds: Decimal = Field(Decimal(15), ge=0, le=600)
    maintenance: bool = False
    payouts_enabled: bool = False
    payout_minimum_usd: Decimal = Field(Decimal(10), ge=0, le=1_000_000)
    payout_holding_hours: int = Field(168, ge=0, le=2160)
    payout_commission_bps: int = Field(0, ge=0, le=9000)
    payout_schedule_days: int = Field(0, ge=0, le=366)
    payouts_checked_at: AwareDatetime | None = None
    x402_price_usd: Decimal = Field(Decimal("0.01"), gt=0, le=1000)
    x402_recipient_evm: str = ""
    x402_recipient_solana: str = ""
    x402_settlement_key_evm: SecretStr = SecretStr("")
    x402_settlement_key_solana: SecretStr = SecretStr("")
    x402_settlement_keys: int = Field(1, ge=1, le=setting_types.MAX_SETTLEMENT_KEYS)
    x402_max_age_seconds: int = Field(3600, ge=60, le=86_400)
    x402_miss_limit: RateLimit | None = None
    x402_failed_gas_usd_per_day: Decimal = Field(Decimal(5), ge=0)
    x402_upto_usd_per_payer: Decimal = Field(Decimal(1), ge=0)
    x402_upto_usd: Decimal = Field(Decimal(20), ge=0)
    allow_private_upstreams: bool = False

    browser_executable: str = ""
    browser_without_sandbox: bool = False
    shopper_model: str = Field("", pattern=r"^$|^[a-z0-9_-]+/\S+$")
    shopper_model_max_usd: Decimal = Field(Decimal("0.05"), ge=0, le=1000)

    smtp_url: SecretStr = SecretStr("")
    mail_from: str = ""
    web_push_key: SecretStr = SecretStr("")

    terms_url: PageUrl = ""
    privacy_url: PageUrl = ""
    support_url: SupportUrl = ""
    status_url: PageUrl = ""

    metrics_token: SecretStr = SecretStr("")
    otel_exporter_otlp_endpoint: str = ""
    sentry_dsn: SecretStr = SecretStr("")
    security_contact: str = Field("", pattern=r"^$|^(https://|mailto:|tel:)[!-~]+$")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("redis_url")
    @classmethod
    def _validate_redis_url(cls, value: SecretStr) -> SecretStr:
        # Validated here, without quoting it: libraries quote a URL that they cannot use, including its password.
        try:
            parts = urlsplit(value.get_secret_value())
            usable = parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            msg = "REDIS_URL must look like redis://:password@host:6379/0, the password percent-encoded"
            raise ValueError(msg)
        return value

    @field_validator("database_url", "database_replica_url", "signer_database_url", mode="before")
    @classmethod
    def _sqlalchemy_url(cls, value: Any) -> Any:
        # Platforms use postgres://, which SQLAlchemy does not support; psycopg 3 is the installed driver.
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        return SecretStr(re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", text))

    @model_validator(mode="before")
    @classmethod
    def _defaults_by_host_and_network(cls, values: dict[str, Any]) -> dict[str, Any]:
        # An empty value counts as unset, except for limits, where it means "off".
        values = {
            name: None if value == "" else value for name, value in values.items() if value != "" or name in _LIMITS
        }
        in_sandbox = values.get("network", Network.SANDBOX) == Network.SANDBOX
        of_network = _SANDBOX_DEFAULTS if in_sandbox else _LIMITS
        return {**host.defaults(values.get("host_memory")), **of_network, **values}

    @model_validator(mode="after")
    def _require_production_settings(self) -> Settings:
        missing = [name for name in REQUIRED if not getattr(self, name).get_secret_value()]
        if missing:
            names = ", ".join(name.upper() for name in missing)
            msg = f"set {names} (`./run` generates them for the sandbox; see docs/configuration.md)"
            raise ValueError(msg)
        if self.is_sandbox and not self.sandbox_public and not is_loopback(urlsplit(self.public_url).hostname):
            raise ValueError(PUBLIC_SANDBOX_MESSAGE.format(what="BASE_URL is not a loopback address"))
        # A guessed one can forge sessions. A short one may be part of a secret that contains a comma.
        if any(len(each) < MIN_SECRET_LENGTH for each in self.secret_key_list()[1:]):
            msg = f"SECRET_KEY_FALLBACKS must be separated by commas, each of at least {MIN_SECRET_LENGTH} characters"
            raise ValueError(msg)
        ca_file = self.redis_ca_file
        if ca_file and not (self.redis_address.startswith("rediss:") and (ca_file == "off" or Path(ca_file).is_file())):
            raise ValueError("REDIS_CA_FILE must be a readable file, or off, and REDIS_URL a rediss:// address")
        setting_types.key_services(self.wallet_encryption_keys, self.encryption_key_list())
        self.code_pepper_list()
        keys(self.web_bot_auth_keys.get_secret_value(), "WEB_BOT_AUTH_KEYS")
        signing_keys = keys(self.receipt_signing_keys.get_secret_value(), "RECEIPT_SIGNING_KEYS")
        if not all(0 < int.from_bytes(key) < 2**256 - 2**224 for _, key in signing_keys):
            raise ValueError("RECEIPT_SIGNING_KEYS has a key that cannot be used: make a new one")
        self.parsed_price_overrides()
        self.payment_recipient(Family.EVM)
        self.payment_recipient(Family.SOLANA)
        self.settlement_keys()
        self._validate_notices()
        return self

    def _validate_notices(self) -> None:
        """Check the settings of notices, without quoting a secret. Raises: ValueError."""
        parts = urlsplit(self.smtp_url.get_secret_value())
        if parts.scheme not in {"", "smtp", "smtps"} or bool(parts.scheme) != bool(parts.hostname):
            raise ValueError("SMTP_URL must look like smtp://user:password@host:587 or smtps://host")
        if parts.scheme and not re.fullmatch(r"[^@\s<>]+@[^@\s<>]+", self.mail_from):
            raise ValueError("with SMTP_URL, MAIL_FROM must be the address that messages come from")
        if not re.fullmatch(r"(?:[A-Za-z0-9_-]{43})?", self.web_push_key.get_secret_value(), re.ASCII):
            raise ValueError("WEB_PUSH_KEY must be a P-256 private key: 32 bytes in base64url, 43 characters")

    @classmethod
    def load(cls, **given: Any) -> Settings:
        """Read the environment, but for what is given. Raises: SystemExit with a line per invalid setting, no value."""
        try:
            return cls(**given)
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            messages = [(problem["loc"], problem["msg"].removeprefix("Value error, ")) for problem in found]
            lines = [f"{str(loc[0]).upper()}: {text}" if loc else text for loc, text in messages]
            raise SystemExit("\n".join(["The settings are invalid:", *lines])) from None

    @property
    def is_sandbox(self) -> bool:
        return self.network is Network.SANDBOX

    @property
    def public_url(self) -> str:
        """Return the base URL for links, without a trailing slash."""
        return (self.base_url or f"http://127.0.0.1:{self.port}").rstrip("/")

    @property
    def redis_address(self) -> str:
        """Return REDIS_URL with what REDIS_CA_FILE says of the server's certificate, as redis-py reads it."""
        url = self.redis_url.get_secret_value()
        if not self.redis_ca_file:
            return url
        tls = {"ssl_cert_reqs": "none"} if self.redis_ca_file == "off" else {"ssl_ca_certs": self.redis_ca_file}
        return f"{url}{'&' if '?' in url else '?'}{urlencode(tls)}"

    @property
    def jupiter_url(self) -> str:
        """Return Jupiter's base URL; in the sandbox that of its stand-in."""
        default = "http://127.0.0.1:18549" if self.is_sandbox else "https://api.jup.ag"
        return self.upstreams.jupiter_base_url or default

    def secret_texts(self) -> frozenset[str]:
        """Return every secret of the operator that a text may contain, parts of URLs with keys included."""
        found: set[str] = set()
        fields = type(self).model_fields | UpstreamAccess.model_fields
        for name, value in {**dict(self), **dict(self.upstreams)}.items():
            if isinstance(value, SecretStr):
                found.update([value.get_secret_value(), *split(value.get_secret_value())])
            elif fields[name].repr is False:
                urls = [value] if isinstance(value, str) else value
                found.update(part for url in urls for part in [url, *_URL_SEPARATORS.split(url)])
        return frozenset(text for text in found if len(text) >= _MIN_HIDDEN_CHARACTERS)

    def secret_key_list(self) -> tuple[str, ...]:
        """Return the secret for new tokens and digests, then those that are still accepted."""
        return (self.secret_key.get_secret_value(), *split(self.secret_key_fallbacks.get_secret_value()))

    def encryption_key_list(self) -> tuple[tuple[str, bytes], ...]:
        return keys(self.encryption_keys.get_secret_value(), "ENCRYPTION_KEYS")

    def code_pepper_list(self) -> tuple[tuple[str, bytes], ...]:
        return keys(self.code_peppers.get_secret_value(), "CODE_PEPPERS")

    def rpc_urls(self, chain: ChainName) -> tuple[str, ...]:
        urls = (self.ethereum_rpc_url, self.base_rpc_url, self.solana_rpc_url)
        return dict(zip((ChainName.ETHEREUM, ChainName.BASE, ChainName.SOLANA), urls, strict=True))[chain]

    def confirmations(self, chain: ChainName, *, of_deposits: bool = False) -> int:
        """Return the confirmations that an own transaction, or a deposit or payment, needs before it is settled."""
        if of_deposits:
            of_ethereum, of_base = self.ethereum_deposit_confirmations, self.base_deposit_confirmations
            return {ChainName.ETHEREUM: of_ethereum, ChainName.BASE: of_base}[chain]
        needed = {ChainName.ETHEREUM: self.ethereum_confirmations, ChainName.BASE: self.base_confirmations}
        return needed.get(chain, 1)

    def payment_recipient(self, family: Family) -> str | None:
        """Return the recipient of payments that the operator configured, if any. Raises: ValueError."""
        text = self.x402_recipient_evm if family is Family.EVM else self.x402_recipient_solana
        try:
            return parse_address(text, family) if text else None
        except AddressError as error:
            msg = f"X402_RECIPIENT_{family.upper()} {error}"
            raise ValueError(msg) from None

    def settlement_keys(self) -> tuple[bytes | None, bytes | None]:
        """Return the operator's own 32-byte keys for submitting payments, EVM and Solana. Raises: ValueError."""
        evm_text = self.x402_settlement_key_evm.get_secret_value()
        solana_text = self.x402_settlement_key_solana.get_secret_value()
        try:
            evm = bytes.fromhex(evm_text.removeprefix("0x"))
            # Solana's tools write the seed followed by the public key.
            solana = base58_bytes(solana_text)[:KEY_BYTES]
        except ValueError:
            evm = solana = b"?"
        if len(evm) not in (0, KEY_BYTES) or len(solana) not in (0, KEY_BYTES):
            msg = "X402_SETTLEMENT_KEY_EVM must be 32 bytes in hex, X402_SETTLEMENT_KEY_SOLANA a keypair in base58"
            raise ValueError(msg)
        return evm or None, solana or None

    def parsed_price_overrides(self) -> dict[str, Decimal]:
        """Return PRICE_OVERRIDES as dollars by token symbol. Raises: ValueError."""
        prices = {}
        for part in split(self.price_overrides):
            symbol, _, usd = part.partition(":")
            try:
                prices[symbol] = Decimal(usd)
            except InvalidOperation:
                prices[symbol] = Decimal(0)
            if symbol not in TOKENS_BY_SYMBOL or not prices[symbol].is_finite() or prices[symbol] <= 0:
                msg = "PRICE_OVERRIDES must look like ETH:3000,SOL:150"
                raise ValueError(msg)
        return prices
