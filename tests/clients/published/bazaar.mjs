// Finds a resource with npm's @x402/extensions and pays for it with @x402/fetch, as their users write it.
// Arguments: the service, the end of the resource's address, its query, the payer's private key.
import { readFileSync } from "node:fs";
import { HTTPFacilitatorClient } from "@x402/core/server";
import { ExactEvmScheme } from "@x402/evm/exact/client";
import { withBazaar } from "@x402/extensions/bazaar";
import { decodePaymentResponseHeader, wrapFetchWithPayment, x402Client } from "@x402/fetch";
import { privateKeyToAccount } from "viem/accounts";

const [url, end, query, key] = process.argv.slice(2);
const { bazaar } = withBazaar(new HTTPFacilitatorClient({ url })).extensions;
const wanted = { type: "http", network: "eip155:8453", scheme: "exact", extensions: "bazaar", limit: 100 };
const { items, pagination } = await bazaar.listResources(wanted);
const others = await bazaar.listResources({ ...wanted, network: "eip155:56" });
const found = items.find((each) => each.resource.endsWith(end));
const signer = privateKeyToAccount(key);
const pay = wrapFetchWithPayment(fetch, new x402Client().register("eip155:8453", new ExactEvmScheme(signer)));
const answer = await pay(found.resource + query, { method: found.extensions.bazaar.info.input.method });
const settled = decodePaymentResponseHeader(answer.headers.get("PAYMENT-RESPONSE"));
const { version } = JSON.parse(readFileSync(new URL("../node_modules/@x402/extensions/package.json", import.meta.url)));
const listed = { total: pagination.total, items: items.length, others: others.items.length };
console.log(JSON.stringify({ status: answer.status, body: await answer.json(), settled, found, listed, version }));
