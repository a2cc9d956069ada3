// Pays for a request by MPP with npm's mppx, as its documentation shows. Arguments: the URL, the payer's key.
import { readFileSync } from "node:fs";
import { Receipt } from "mppx";
import { Mppx } from "mppx/client";
import { assets, evm } from "mppx/evm/client";
import { privateKeyToAccount } from "viem/accounts";

const [url, key] = process.argv.slice(2);
const method = evm.charge({ account: privateKeyToAccount(key), currencies: [assets.base.USDC], maxAmount: "0.05" });
const mppx = Mppx.create({ polyfill: false, methods: [method] });
const answer = await mppx.fetch(url);
const { version } = JSON.parse(readFileSync(new URL("../node_modules/mppx/package.json", import.meta.url)));
const settled = Receipt.fromResponse(answer);
console.log(JSON.stringify({ status: answer.status, body: await answer.json(), settled, version }));
