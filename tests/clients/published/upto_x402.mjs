// Pays with npm's @x402/fetch for what a call cost. Arguments: the URL, the body, the payer's private key, and a node's URL.
import { readFileSync } from "node:fs";
import { toClientEvmSigner } from "@x402/evm";
import { UptoEvmScheme } from "@x402/evm/upto/client";
import { decodePaymentResponseHeader, wrapFetchWithPayment, x402Client } from "@x402/fetch";
import { createPublicClient, http } from "viem";
import { privateKeyToAccount } from "viem/accounts";

const [url, body, key, node] = process.argv.slice(2);
const signer = toClientEvmSigner(privateKeyToAccount(key), createPublicClient({ transport: http(node) }));
const pay = wrapFetchWithPayment(fetch, new x402Client().register("eip155:*", new UptoEvmScheme(signer)));
const answer = await pay(url, { method: "POST", headers: { "Content-Type": "application/json" }, body });
const text = await answer.text();
const receipt = answer.headers.get("PAYMENT-RESPONSE");
const { version } = JSON.parse(readFileSync(new URL("../node_modules/@x402/fetch/package.json", import.meta.url)));
const settled = receipt && decodePaymentResponseHeader(receipt);
console.log(JSON.stringify({ status: answer.status, text, settled, version }));
