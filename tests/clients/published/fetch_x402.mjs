// Pays with npm's x402-fetch, as its users write it. Arguments: the URL and the payer's private key.
import { readFileSync } from "node:fs";
import { createSigner, decodeXPaymentResponse, wrapFetchWithPayment } from "x402-fetch";

const [url, key] = process.argv.slice(2);
const pay = wrapFetchWithPayment(fetch, await createSigner("base", key));
const answer = await pay(url);
const settled = decodeXPaymentResponse(answer.headers.get("x-payment-response"));
const { version } = JSON.parse(readFileSync(new URL("../node_modules/x402-fetch/package.json", import.meta.url)));
console.log(JSON.stringify({ status: answer.status, body: await answer.json(), settled, version }));
