import assert from "node:assert/strict";
import { createPublicClient, http } from "viem";

export const npmPackage = "viem";
const clientOf = (gateway, options = {}) => {
  const fetchOptions = { headers: { "X-API-Key": gateway.key } };
  return createPublicClient({ transport: http(gateway.base("alchemy/base"), { fetchOptions, ...options }) });
};

export const examples = {
  async "read a chain"(gateway) {
    const client = clientOf(gateway);
    assert.equal((await client.getBlock({ blockNumber: 0n })).number, 0n);
    assert.equal(typeof (await client.getChainId()), "number");
    assert.equal(await client.getBalance({ address: `0x${"ab".repeat(20)}` }), 0n);
  },
  async "batch of calls"(gateway) {
    const client = clientOf(gateway, { batch: true });
    const [block, chain] = await Promise.all([client.getBlockNumber(), client.getChainId()]);
    assert.ok(block >= 0n && chain > 0);
  },
};
