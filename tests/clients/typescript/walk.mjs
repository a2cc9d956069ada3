// Walks the tutorial with the installed package. Arguments: the service's address, and that of a proxy that drops
// connections. Prints what the test compares.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { ApprovalDenied, LimitExceeded, NotFound, Purser, PurserError, ReceiptVerificationError, ServerError, UpstreamError, ValidationError, verifyReceipt, verifyWebhook, WebhookVerificationError } from "purser-sdk";
import OpenAI from "openai";

const [url, flaky] = process.argv.slice(2);
const refusal = async (call, family) => {
  const error = await call().then(() => assert.fail("not refused"), (failure) => failure);
  assert(error instanceof family && error instanceof PurserError, error);
  return error;
};
const serve = async (answer) => {
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    answer(request, Buffer.concat(chunks), response);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  server.unref();
  return `http://127.0.0.1:${server.address().port}`;
};

const purser = new Purser({ baseUrl: url });
const made = await purser.register({ name: "walker" });
assert.deepEqual([purser.apiKey, purser.walletId], [made.apiKey, made.wallet.id]);
for (const [currency, amount] of [["ETH", "0.01"], ["USDC", "25"]]) {
  const funded = await purser.wait(await purser.fund({ chain: "base", currency, amount }));
  assert.deepEqual([funded.status, funded.type, funded.amount], ["confirmed", "funding", amount]);
}
const held = (await purser.balance()).balances.find(({ chain, token }) => chain === "base" && token === "USDC");
// A client with the key alone finds the wallet.
assert.equal((await new Purser({ baseUrl: url, apiKey: made.apiKey }).getBalances()).wallet_id, made.wallet.id);

const setControls = purser.setControls ?? purser.putControls;
await setControls.call(purser, { daily_limit_usd: 20 });
const friend = await new Purser({ baseUrl: url }).register({ name: "friend" });
const payment = { chain: "base", currency: "USDC", amount: "12.5", to: friend.wallet.addresses.base };
const quote = await purser.transfer({ ...payment, dry_run: true });
assert(quote.dry_run);
const first = await purser.transfer({ ...payment, idempotency_key: "invoice-7" });
const again = await purser.transfer({ ...payment, idempotency_key: "invoice-7" });
assert.equal(first.transaction_id, again.transaction_id);
const sent = await purser.wait(first);
const limit = await refusal(() => purser.transfer(payment), LimitExceeded);
const keys = await (await fetch(`${url}/.well-known/jwks.json`)).json();
const { receipt } = await purser.getReceipt({ record_id: sent.id });
const proof = await verifyReceipt(receipt, keys, url);
assert.deepEqual([proof.type, proof.statement.record.amount, proof.statement.record.tx_hash], ["purser-record+jws", "12.5", sent.tx_hash]);
assert.equal((await verifyReceipt(limit.receipt, keys, url)).statement.refusal.code, limit.code);
const [head, , signature] = receipt.split(".");
const dearer = Buffer.from(JSON.stringify({ ...proof.statement, record: { amount: "0" } })).toString("base64url");
for (const [text, of] of [[`${head}.${dearer}.${signature}`, url], [receipt, "https://attacker.example"], [`${receipt}.`, url], ["", url], [`${head}.${dearer}.`, url]])
  await refusal(() => verifyReceipt(text, keys, of), ReceiptVerificationError);
await refusal(() => verifyReceipt(receipt, { keys: [] }, url), ReceiptVerificationError);
const invalid = await refusal(() => purser.transfer({ ...payment, amount: "much" }), ValidationError);
assert.deepEqual(Object.keys(invalid.details.fields), ["amount"]);
await refusal(() => purser.getTransaction({ transaction_id: "5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10" }), NotFound);

const dropped = new Purser({ baseUrl: flaky, apiKey: made.apiKey });
const retried = await dropped.transfer({ ...payment, amount: "1" });
const transfers = await purser.listTransactions({ type: "transfer" });
assert.deepEqual(transfers.transactions.map(({ id }) => id), [retried.transaction_id, first.transaction_id]);

const swapped = await purser.swap({ chain: "base", input_token: "USDC", output_token: "ETH", amount: "5" });
const bridged = await purser.wait(
  await purser.bridge({ source_chain: "base", destination_chain: "ethereum", token: "USDC", amount: "2" }),
);
const ticker = await purser.callPerpdex({ action: "ticker", symbol: "ETH" });
const preview = await refusal(
  () => purser.callPerpdex({ action: "order", symbol: "ETH", side: "sell", price: "3000.55", amount: "0.001", reduceOnly: true }),
  ServerError,
);

const call = { jsonrpc: "2.0", id: 1, method: "eth_chainId", params: [] };
const answer = await purser.forwardPost({ provider: "alchemy", path: "base", body: call });
assert.equal(answer.headers.get("X-Cost-Usd"), "0.0001");
const unconfigured = await refusal(() => purser.forwardGet({ provider: "anthropic", path: "v1/models" }), PurserError);
const said = [];
for (const openai of [purser.openaiClient(OpenAI), await purser.openaiClient()]) {
  const completion = await openai.chat.completions.create({ model: "gpt-5", messages: [{ role: "user", content: "hello" }] });
  said.push(completion.choices[0].message.content);
}

const shop = await serve((request, body, response) => {
  response.writeHead(201, { "X-Shop": "yes" }).end(`${request.method} ${request.headers["x-asked"]} ${body}`);
});
const bought = await purser.fetch(`${shop}/report`, { method: "POST", headers: { "X-Asked": "so" }, body: "{}", max_amount_usd: 0.05 });
assert.deepEqual([bought.status, bought.headers.get("X-Shop"), bought.payment], [201, "yes", null]);
const priced = await serve((request, body, response) => {
  if (request.headers["payment-signature"]) return response.end("sunny");
  const terms = { x402Version: 2, resource: { url: `${priced}/report` }, accepts: [JSON.parse(process.env.OFFER)] };
  response.writeHead(402, { "PAYMENT-REQUIRED": btoa(JSON.stringify(terms)) }).end("{}");
});
const report = await new Purser({ baseUrl: url, apiKey: made.apiKey, maxAmountUsd: 0.05 }).fetch(new URL(`${priced}/report`));
assert.deepEqual([report.status, await report.text(), report.payment.amount], [200, "sunny", "0.01"]);
const dear = await refusal(() => purser.fetch(`${priced}/report`, { max_amount_usd: 0.001 }), LimitExceeded);
const gone = await refusal(() => purser.fetch("http://127.0.0.1:9/none", { max_amount_usd: 0.05 }), UpstreamError);
await setControls.call(purser, { approval_threshold_usd: 0.5 });
const waiting = await purser.transfer({ ...payment, amount: "0.75" });
await purser.cancelApproval({ approval_id: waiting.approval.id });
const denied = await refusal(() => purser.wait(waiting), ApprovalDenied);

let arrive;
const arrived = new Promise((resolve) => (arrive = resolve));
const target = await serve((request, body, response) => {
  response.end();
  arrive({ headers: request.headers, body });
});
const webhook = await purser.createWebhook({ url: target, types: ["webhook.test"] });
await purser.testWebhook({ webhook_id: webhook.id });
const { headers, body } = await arrived;
const event = await verifyWebhook(body, headers, webhook.secret);
const forged = await refusal(() => purser.verifyWebhook(`${body} `, headers, webhook.secret), WebhookVerificationError);
const late = { ...headers, "webhook-timestamp": "1700000000" };
const old = await refusal(() => verifyWebhook(body, new Headers(late), webhook.secret), WebhookVerificationError);

const events = [];
for await (const each of purser.followEvents({ types: "transaction.confirmed" })) if (events.push(each.type) === 3) break;
const paid = await purser.faucet({ chain: "base", currency: "USDC", amount: "1", reference: made.agentId });
assert.deepEqual(await purser.faucet({ chain: "base", currency: "USDC", amount: "1", reference: made.agentId }), paid);

console.log(JSON.stringify({
  held: held.balance, sent: sent.status, limit: [limit.code, limit.status, limit.details.limit_usd, limit.details.requested_usd],
  swapped: swapped.status, bridged: bridged.status, ticker: ticker.mid_price, preview: preview.code,
  order: preview.body.payload.action.type, chain: (await answer.json()).result, unconfigured: unconfigured.code, said,
  bought: await bought.text(), dear: dear.code, gone: gone.code, denied: denied.code, event: event.type, forged: forged.code, old: old.code, events,
}));
