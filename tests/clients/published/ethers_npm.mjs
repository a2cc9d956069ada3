import assert from "node:assert/strict";
import { FetchRequest, JsonRpcProvider } from "ethers";

export const npmPackage = "ethers";

export const examples = {
  async "read a chain"(gateway) {
    const request = new FetchRequest(gateway.base("alchemy/base"));
    request.setHeader("X-API-Key", gateway.key);
    const provider = new JsonRpcProvider(request);
    const [network, block, balance] = await Promise.all([
      provider.getNetwork(), provider.getBlock(0), provider.getBalance(`0x${"ab".repeat(20)}`),
    ]);
    assert.ok(network.chainId > 0n);
    assert.equal(block.number, 0);
    assert.equal(balance, 0n);
    provider.destroy();
  },
};
