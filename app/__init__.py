"""Purser: an agent wallet and API gateway. This page is the floor plan.

factory      create_app(): reads like a table of contents
wiring       settings -> which adapter stands behind each port; the only importer of adapters
config       the settings, the only reader of the environment
extensions   unbound extension objects
errors       every failure with its code and status
jobs         names of queues and jobs

Ground (shared, no feature)
  core/      money, addresses, chains, clock, identifiers, leases, unit of work
  web/       blueprints, parsing, wire fields, failures, idempotency, documentation, gunicorn's worker
Outside
  ports/     what we need from the world, as Protocols
  adapters/  evm, solana, uniswap, jupiter, cctp, portal, relay, vault, prices, faucet, queue, upstream_http, perpdex
Rooms, lowest first (a room calls the verbs of lower rooms and never touches their tables)
  identity/  API keys, master keys, who is calling, guards
  credits/   accounts and postings: grant, hold, settle, release
  spending/  controls and holds: what a wallet may spend
  usage/     what was used and what it cost
  wallets/   custody, balances, movements, funding, history
  trading/   the perpetual-futures exchange: reading it, previewing actions
  catalog/   third-party services: registered, found, subscribed to, called through the proxy
  shopping/  purchases in web shops, made by a browser
  agents/    registration and claim codes
  gateway/   the paid proxy: providers, prices, metering of forwarded calls
  payments/  a payment for one call (x402), the treasury, credits for USDC
  device/    the JSON with which a person claims an agent, limits on guessing
  status/    health, documentation pages, the front page
  platform/  administration with master keys: agents, fleets, keys, the audit trail
  owner/     the pages for people: claiming an agent, keeping it in hand

Arrows point one way: workers -> factory -> wiring -> adapters -> rooms -> web -> ports -> core.
"""
