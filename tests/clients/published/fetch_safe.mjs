// Pays with npm's @x402/fetch from a Safe. Arguments: the URL, the body, the owner's private key, the Safe's address, and
// the factory and calldata of its deployment while it is not deployed.
import { readFileSync } from "node:fs";
import { ExactEvmScheme } from "@x402/evm/exact/client";
import { decodePaymentResponseHeader, wrapFetchWithPayment, x402Client } from "@x402/fetch";
import { hashTypedData, serializeErc6492Signature } from "viem";
import { privateKeyToAccount } from "viem/accounts";

const [url, body, key, address, factory, deployment] = process.argv.slice(2);
const owner = privateKeyToAccount(key);
const types = { SafeMessage: [{ name: "message", type: "bytes" }] };
const safe = {
  address,
  async signTypedData(data) {
    const domain = { chainId: data.domain.chainId, verifyingContract: address };
    const message = { message: hashTypedData(data) };
    const signature = await owner.signTypedData({ domain, types, primaryType: "SafeMessage", message });
    return factory ? serializeErc6492Signature({ address: factory, data: deployment, signature }) : signature;
  },
};
const pay = wrapFetchWithPayment(fetch, new x402Client().register("eip155:*", new ExactEvmScheme(safe)));
const answer = await pay(url, { method: "POST", headers: { "Content-Type": "application/json" }, body });
const settled = decodePaymentResponseHeader(answer.headers.get("PAYMENT-RESPONSE"));
const { version } = JSON.parse(readFileSync(new URL("../node_modules/@x402/fetch/package.json", import.meta.url)));
console.log(JSON.stringify({ status: answer.status, settled, version }));
