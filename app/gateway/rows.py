"""The rows that the service comes with. List prices are those of November 2026; all of them can be overridden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr

from app.config import Settings
from app.core.chains import ChainName
from app.core.money import nanos_from_usd
from app.gateway.denials import FieldDenial
from app.gateway.dialects.facts import Dialect
from app.gateway.pricing import FixedPrice, PerPath, PerRpcMethod, TokenPrices
from app.gateway.providers import Credential, Kind, Provider

_BEARER = Credential("Authorization", "Bearer {key}")
_CHAINS = MappingProxyType(
    {
        "ethereum": "eth-mainnet",
        "eth": "eth-mainnet",
        "mainnet": "eth-mainnet",
        "sepolia": "eth-sepolia",
        "ethereum-sepolia": "eth-sepolia",
        "base": "base-mainnet",
        "base-sepolia": "base-sepolia",
        "arbitrum": "arb-mainnet",
        "arb": "arb-mainnet",
        "arbitrum-sepolia": "arb-sepolia",
        "optimism": "opt-mainnet",
        "op": "opt-mainnet",
        "optimism-sepolia": "opt-sepolia",
        "polygon": "polygon-mainnet",
        "matic": "polygon-mainnet",
        "polygon-amoy": "polygon-amoy",
        "solana": "solana-mainnet",
        "solana-devnet": "solana-devnet",
    }
)
_NETWORKS = MappingProxyType({**_CHAINS, **{slug: slug for slug in _CHAINS.values()}})

# Stored things, keys and accounts, and what is billed when nobody waits for it any more.
_OPENAI_ROUTES = (
    (
        r"\S+ (files|uploads|batches|fine_tuning|fine-tunes|vector_stores|assistants|threads|conversations|containers|"
        r"evals|graders|organization|organizations|projects|videos|skills|chatkit|realtime|webhooks|dashboard|usage)(/.*)?"
    ),
    r"\S+ chat/completions/.*",
    r"(?!POST )\S+ chat/completions",
    r"\S+ responses/(?!compact$|input_tokens$).*",
    r"(?!POST )\S+ responses",
    r"(?!GET |HEAD )\S+ models/.*",
)
_OPENAI_FIELDS = (
    "previous_response_id", "background=^true$", "conversation", "file_id", "file_ids", "vector_store_ids",
    "container=.", "item_reference", "prompt{}",
)  # fmt: skip
_ANTHROPIC_ROUTES = (
    r"\S+ v1/(files|organizations|skills|agents|sessions|environments|vaults|memory_stores|deployments)(/.*)?",
    r"\S+ v1/messages/batches(/.*)?",
    r"\S+ (?!v1/).*",
)
_GEMINI_ROUTES = (
    (
        r"\S+ (.*/)?(files|cachedContents|tunedModels|corpora|ragStores|fileSearchStores|batches|operations|"
        r"generatedFiles|auth_tokens|agents|dynamic)(/.*)?"
    ),
    r"\S+ (upload|download|resumable)/.*",
    r"\S+ (.*/)?\w+:(batchGenerateContent|asyncBatchEmbedContent|predictLongRunning|cancel|transferOwnership)",
    r"\S+ .*:(batchGenerateContent|asyncBatchEmbedContent|predictLongRunning)",
    r"\S+ (.*/)?interactions/.+",
    r"(?!POST )\S+ (.*/)?interactions",
    r"\S+ (.*/)?openai/(batches|files|videos)(/.*)?",
)
# What steers a node, bills by its own measure, or belongs to the account that all share (its webhooks, its gas).
_RPC_DENIED = re.compile(
    r"(admin|anvil|clique|debug|engine|evm|hardhat|les|miner|personal|sandbox|trace|txpool|wallet|pm|rundler)_.*|"
    r"alchemy_(?i:.*(notify|webhook)|request(Gas|Paymaster)|requestGasAndPaymasterAndData).*|"
    r"eth_(sign.*|sendTransaction|submit.*)|requestAirdrop"
)
# The sandbox's own chains would also change anybody's balance and fetch from any address, for whoever asks.
_SANDBOX_METHODS = re.compile(
    r"eth_(blobBaseFee|blockNumber|call|chainId|createAccessList|estimateGas|feeHistory|gasPrice|"
    r"maxPriorityFeePerGas|protocolVersion|sendRawTransaction|simulateV1|syncing|"
    r"get(Balance|Block[A-Za-z]*|Code|Filter(Changes|Logs)|HeaderBy[A-Za-z]*|Logs|Proof|RawTransaction[A-Za-z]*|"
    r"StorageAt|Transaction[A-Za-z]*|Uncle[A-Za-z]*)|newFilter|newBlockFilter|uninstallFilter)|"
    r"net_(listening|peerCount|version)|web3_(clientVersion|sha3)|"
    r"get[A-Z][A-Za-z]*|isBlockhashValid|minimumLedgerSlot|sendTransaction|simulateTransaction"
)
# Google's system parameters that leave the usage out of the answer, or turn it into no JSON.
_GEMINI_PARAMETERS = (
    r"\$?\.?(fields|callback|jsonp|ct|req|outputDefaults)=.*",
    r"\$?\.?alt=(?!(json|sse)$).*",
    r"X-Goog-FieldMask=.*",
)
_OPENROUTER_ROUTES = (
    (
        r"\S+ (key|keys|credits|generation|auth|activity|organization|organizations|guardrails|byok|private|files|"
        r"batches|videos|workspaces|analytics)(/.*)?"
    ),
    *_OPENAI_ROUTES[1:],
)


def built_in(settings: Settings) -> dict[str, Provider]:
    """Return the rows by slug, with the operator's keys and addresses."""
    floor_nanos = nanos_from_usd(settings.x402_price_usd)

    def row(slug: str, kind: Kind, **more: Any) -> Provider:
        api_key: SecretStr = getattr(settings, f"{slug}_api_key")
        more.setdefault("denied_routes", ())
        more.setdefault("denied_fields", ())
        more.setdefault("denied_parameters", ())
        return Provider(
            slug=slug,
            kind=kind,
            base_url=getattr(settings, f"{slug}_base_url"),
            api_key=api_key.get_secret_value(),
            x402_floor_nanos=floor_nanos,
            **{
                **more,
                "denied_routes": compiled(more["denied_routes"]),
                "denied_parameters": compiled(more["denied_parameters"]),
                "denied_fields": tuple(FieldDenial.parse(text) for text in more["denied_fields"]),
            },
        )

    rows = [
        row(
            "openai",
            Kind.LANGUAGE_MODEL,
            aliases=("llm_provider_1",),
            credential=_BEARER,
            dialect=Dialect.OPENAI,
            price=TokenPrices(table="openai"),
            denied_routes=_OPENAI_ROUTES,
            denied_fields=_OPENAI_FIELDS,
        ),
        row(
            "anthropic",
            Kind.LANGUAGE_MODEL,
            aliases=("llm_provider_2",),
            credential=Credential("x-api-key"),
            default_headers={"anthropic-version": "2023-06-01"},
            dialect=Dialect.ANTHROPIC,
            price=TokenPrices(table="anthropic"),
            denied_routes=_ANTHROPIC_ROUTES,
            denied_fields=("file_id", "container", "container=."),
        ),
        row(
            "gemini",
            Kind.LANGUAGE_MODEL,
            aliases=("google", "llm_provider_3"),
            credential=Credential("x-goog-api-key"),
            dialect=Dialect.GEMINI,
            price=TokenPrices(table="google"),
            denied_routes=_GEMINI_ROUTES,
            denied_parameters=_GEMINI_PARAMETERS,
            denied_fields=(
                "cachedContent",
                "cached_content",
                "previous_interaction_id",
                "background=^true$",
                "fileSearchStoreNames",
                r"fileUri=generativelanguage|^(?!https?:)",
                r"file_uri=generativelanguage|^(?!https?:)",
            ),
        ),
        row(
            "openrouter",
            Kind.LANGUAGE_MODEL,
            aliases=("llm_provider_4",),
            credential=_BEARER,
            dialect=Dialect.OPENROUTER,
            price=TokenPrices(table="openrouter"),
            denied_routes=_OPENROUTER_ROUTES,
            # A preset is stored with the account, and may name a dearer model than the one that was priced.
            denied_fields=(*_OPENAI_FIELDS, "preset", "model=@preset"),
        ),
        row(
            "groq",
            Kind.LANGUAGE_MODEL,
            credential=_BEARER,
            dialect=Dialect.GROQ,
            price=TokenPrices(table="groq"),
            denied_routes=_OPENAI_ROUTES,
            denied_fields=_OPENAI_FIELDS,
        ),
        row(
            "alchemy",
            Kind.CHAIN_RPC,
            aliases=("chain_rpc_provider",),
            price=PerRpcMethod(
                100_000,
                # Of a thousand compute units and more, where the usual call has thirty.
                {
                    "alchemy_simulate*": 2_000_000,
                    "eth_sendUserOperation": 1_000_000,
                    "eth_estimateUser*": 1_000_000,
                },
            ),
            denied_methods=_RPC_DENIED,
            endpoint_methods=_SANDBOX_METHODS,
            networks=_NETWORKS,
            endpoints=_sandbox_chains(settings),
        ),
        row(
            "coingecko",
            Kind.PRICE_DATA,
            aliases=("price_data_provider",),
            credential=Credential(
                "x-cg-pro-api-key" if "pro-api" in settings.coingecko_base_url else "x-cg-demo-api-key"
            ),
            price=FixedPrice(500_000),
            denied_routes=(r"\S+ key",),
        ),
        row(
            "brave",
            Kind.WEB_SEARCH,
            aliases=("web_search_provider",),
            credential=Credential("X-Subscription-Token"),
            price=FixedPrice(5_000_000),
            # Billed by the token and the search, as many as the answer takes.
            denied_routes=(r"\S+ (.*/)?chat/completions(/.*)?",),
            denied_fields=("enable_research",),
        ),
        row(
            "exa",
            Kind.WEB_SEARCH,
            credential=Credential("x-api-key"),
            # Ten pages in three forms at 0.001 each; a deep search is 0.015 of its own.
            price=PerPath({"contents": 30_000_000, "answer": 5_000_000}, 45_000_000),
            denied_fields=(
                r"numResults=^(?!(null|[1-9]|10)$)",
                r"urls=^(?!([0-9]|10) items$)",
                r"ids=^(?!([0-9]|10) items$)",
                r"subpages=^(?!(null|0)$)",
                r"additionalQueries=^(?!0 items$)",
            ),
            denied_routes=(
                r"\S+ (.*/)?(websets|research|webhooks|imports|monitors|events|team-management|api-keys)(/.*)?",
            ),
        ),
        row(
            "tavily",
            Kind.WEB_SEARCH,
            credential=_BEARER,
            price=PerPath({"search": 16_000_000, "extract": 64_000_000}, 80_000_000),
            denied_routes=(r"\S+ (usage|research|crawl|map|keys|generate-keys|deactivate-keys|logs)(/.*)?",),
        ),
    ]
    return {one.slug: one for one in rows}


def compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Make the patterns of denied routes, which match `METHOD path` as a whole. Raises: re.error."""
    return tuple(re.compile(pattern, re.IGNORECASE | re.ASCII) for pattern in patterns)


def _sandbox_chains(settings: Settings) -> Mapping[str, str]:
    """Let the sandbox's own chains answer there where no key is set."""
    if not settings.is_sandbox or settings.alchemy_api_key.get_secret_value():
        return MappingProxyType({})
    urls = {name.value: settings.rpc_urls(name) for name in ChainName}
    return MappingProxyType({name: urls[name][0] for name in urls if urls[name]})
